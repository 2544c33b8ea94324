"""Functions as the derivative passes handle them: find, copy, inline, finish."""

from collections.abc import Callable, Sequence

from pcp.autodiff.core.expansion import expand, forget_channels
from pcp.dialect import function_body, hlo
from pcp.dialect.bindings import PassManager, ir
from pcp.dialect.derivatives import WITHOUT
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError, nearest
from pcp.passes.core.rewriting import splice

Value = ir.Value


#: That some operands of a function have no derivative.

#: The functions of each kind of derivative rule, as its attributes name them. The first
#: one, where there is any, runs in the place of a call.
RULES = {
    "pcp.custom_vjp": ("forward", "backward"),
    "pcp.custom_jvp": ("jvp",),
    WITHOUT: (),
}


def named(rule: ir.Operation, role: str) -> str:
    """The function that a derivative rule names; `primal` is the one it is for."""
    return ir.FlatSymbolRefAttr(rule.attributes[role]).value


def functions(module: ir.Module | ir.Operation) -> dict[str, ir.Operation]:
    """Every function of the module by its symbol."""
    return {
        symbol(op.operation): op.operation
        for op in module.operation.regions[0].blocks[0].operations
        if op.operation.name == "func.func"
    }


def symbol(function: ir.Operation) -> str:
    """A function's name."""
    return ir.StringAttr(function.attributes["sym_name"]).value


def body(function: ir.Operation) -> ir.Block:
    """The only block of a function that has one."""
    return function.regions[0].blocks[0]


def find(module: ir.Module, name: str) -> ir.Operation:
    """The function `name`, with a body of one block and static shapes."""
    known = functions(module)
    if name not in known:
        listed = ", ".join(f"@{n}" for n in known) or "none"
        raise PassError(
            f"no function @{name} in the module (there are: {listed})."
            + nearest(name, known)
        )
    function = known[name]
    where = location_string(function.location)
    if not len(function.regions[0].blocks):
        raise PassError(f"{where}: @{name} is a declaration; it has no body")
    if len(function.regions[0].blocks) > 1:
        raise PassError(
            f"{where}: @{name} has several blocks; lower control flow "
            "to stablehlo.case and stablehlo.while first"
        )
    return function


#: Says of a call that it has a derivative rule, and stays.
Keeps = Callable[[ir.Operation], bool]


def copy(
    module: ir.Module,
    function: ir.Operation,
    name: str,
    keeps: Keeps = lambda call: False,
) -> ir.Operation:
    """A copy called `name`, behind the original, with its calls inlined.

    Ops that are differentiated as others (`kinds.Decomposed`) are those others in it.
    """
    if name in functions(module):
        raise PassError(
            f"@{name} is already in the module; give the result another name with "
            "the option name="
        )
    clone = function.clone(ir.InsertionPoint.after(function))
    clone.attributes["sym_name"] = ir.StringAttr.get(name)
    prepare(module, clone, keeps)
    return clone


def prepare(
    module: ir.Module, function: ir.Operation, keeps: Keeps = lambda call: False
) -> None:
    """Inline calls that have no rule of their own; expand what stands for others."""
    inline_calls(module, function, keeps)
    expand(function)


#: Ops that stand for a function's body, and the attribute that names it.
CALLS = {"func.call": "callee", "stablehlo.composite": "decomposition"}


def callee(call: ir.Operation) -> str:
    """The function that a call or a composite names."""
    return ir.FlatSymbolRefAttr(call.attributes[CALLS[call.name]]).value


def inline_calls(
    module: ir.Module, function: ir.Operation, keeps: Keeps = lambda call: False
) -> None:
    """Replace each call but what `keeps` by the callee's body, at any depth of regions.

    A composite counts as a call of its decomposition. A recursive call is refused:
    it has no finite inlined form.
    """
    known = functions(module)
    pending = [(call, ()) for call in _calls(function)]
    while pending:
        call, chain = pending.pop()
        if keeps(call):
            continue
        name = callee(call)
        if name in chain:
            where = location_string(call.location)
            raise PassError(
                f"{where}: {call.name}: @{name} calls itself; recursion has no inlined "
                "form and cannot be differentiated, use stablehlo.while"
            )
        if name not in known or not len(known[name].regions[0].blocks):
            continue  # an import: the walk reports it if it is on the active path
        pending += [(c, (*chain, name)) for c in _inline(call, known[name])]


def _calls(op: ir.Operation) -> list[ir.Operation]:
    found: list[ir.Operation] = []
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                inner = inner.operation
                if inner.name in CALLS:
                    found.append(inner)
                elif len(inner.regions):
                    found += _calls(inner)
    return found


def _inline(call: ir.Operation, callee: ir.Operation) -> list[ir.Operation]:
    """Put the callee's body in place of the call; returns the calls it brings."""
    husk = callee.clone(ir.InsertionPoint.after(callee))
    results, ops = splice(body(husk), list(call.operands), before=call)
    for old, new in zip(call.results, results, strict=True):
        old.replace_all_uses_with(new)
    call.erase()
    husk.erase()
    brought = []
    for op in ops:
        brought += [op] if op.name in CALLS else _calls(op)
    return brought


#: On a call whose function's rule has done, in its place, what it does.
TAKEN_OVER = "pcp.taken_over"


def finish(function: ir.Operation, results: Sequence[Value]) -> None:
    """Return `results`, set the type that follows, and drop what is not used."""
    block = body(function)
    function_body.finish(function, results)
    forget_channels(function)
    _drop_unused_calls(function)
    _extend(function, "arg_attrs", len(block.arguments))
    _extend(function, "res_attrs", len(results))
    PassManager.parse("func.func(cse)").run(function)


def _drop_unused_calls(function: ir.Operation) -> None:
    """Calls that a derivative's own forward computation took the place of.

    A function without a body may do more than return: its calls stay, unless its
    declaration is marked `nosideeffects`, or a rule of its own has made the call.
    """
    block = function.operation.block
    effects = {
        symbol(op.operation)
        for op in block.operations
        if op.operation.name == "func.func" and may_have_effects(op.operation)
    }
    for call in reversed(_calls(function)):
        name = callee(call)
        if TAKEN_OVER in call.attributes or (call.results and name not in effects):
            if not any(list(r.uses) for r in call.results):
                call.erase()


def may_have_effects(function: ir.Operation) -> bool:
    """Whether a function is a declaration of what may do more than return."""
    declared = not len(function.regions[0].blocks)
    return declared and "nosideeffects" not in function.attributes


def _extend(function: ir.Operation, name: str, count: int) -> None:
    """Lengthen `arg_attrs` or `res_attrs`, where there are any, to `count`."""
    given = hlo.attribute(function, name)
    if given is None:
        return
    have = list(ir.ArrayAttr(given))
    more = [ir.DictAttr.get({})] * (count - len(have))
    function.attributes[name] = ir.ArrayAttr.get([*have, *more])
