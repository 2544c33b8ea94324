"""Functions with derivative rules of their own: `pcp.custom_vjp`, `pcp.custom_jvp`.

`pcp.without_derivative` says of a function's operands that they have none.

A call or a composite of such a function is not inlined before the walk. Where the
walk meets it, the rule's functions are inlined: the forward or the jvp function in
the place of the call, so that nothing is computed twice, and the backward function
where the cotangents are wanted. What they hold has its own rules, so order two
needs nothing more; a custom function that they call keeps its rule.

A jvp function serves reverse mode: what it makes of stand-in tangents is walked
back to these, which is the transpose of its linear part. Functions with jvp rules that
it applies to tangents count as what they compute: they are linear there, and the rule
of a linear function is the function again (JAX does the same).

A function may have a rule of each kind: then each mode has its own.
"""

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from pcp.autodiff.core import functions, registry
from pcp.autodiff.core.activity import is_transposing, propagate, transposing
from pcp.autodiff.core.cotangents import Cotangents, materialize
from pcp.autodiff.core.forward import Tangents
from pcp.autodiff.core.kinds import Rule, Site
from pcp.autodiff.core.reverse import pull_back
from pcp.dialect import hlo
from pcp.dialect.base import integer, text
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import MissingRule, PassError, nearest
from pcp.passes.core.functions import function_type
from pcp.passes.core.rewriting import splice

Value = ir.Value


@dataclass(frozen=True)
class Custom:
    """A function's own rule; `parts` are its functions by role."""

    op: ir.Operation
    parts: dict[str, ir.Operation]


@dataclass(frozen=True)
class Scope:
    """What the module that is being differentiated says."""

    module: ir.Module
    rules: dict[str, dict[str, Custom]] = field(default_factory=dict)


_scope: ContextVar[Scope] = ContextVar("custom rules in force")


@contextmanager
def within(module: ir.Module) -> Iterator[None]:
    """The module's own rules hold inside; a rule that does not fit is a `PassError`."""
    token = _scope.set(Scope(module, _read(module)))
    try:
        yield
    finally:
        _scope.reset(token)


def keeps(call: ir.Operation) -> bool:
    """Whether a call or composite has a rule, and so is not inlined before the walk."""
    return bool(_rules_of(call)) or registered(call) is not None


def _rules_of(call: ir.Operation) -> dict[str, Custom]:
    """The rules of the function that is called, by the op that says them."""
    scope = _scope.get(None)
    return {} if scope is None else scope.rules.get(functions.callee(call), {})


def registered(call: ir.Operation) -> Rule | None:
    """The rule registered for a composite: of its version first, then of any."""
    if call.name != "stablehlo.composite":
        return None
    name = ir.StringAttr(call.attributes["name"]).value
    given = hlo.attribute(call, "version")
    version = 0 if given is None else ir.IntegerAttr(given).value
    return registry.find(f"composite:{name}@{version}") or registry.find(
        f"composite:{name}"
    )


# --- reading the module's rules ---


def _read(module: ir.Module) -> dict[str, dict[str, Custom]]:
    known = functions.functions(module)
    rules: dict[str, dict[str, Custom]] = {}
    for op in module.body.operations:
        op = op.operation
        if op.name not in functions.RULES:
            continue
        primal = _named(op, "primal", known)
        name = functions.symbol(primal)
        own = rules.setdefault(name, {})
        if op.name in own:
            raise _wrong(op, f"@{name} has one already, at {_at(own[op.name].op)}")
        roles = functions.RULES[op.name]
        parts = {role: _named(op, role, known) for role in roles}
        CHECKS[op.name](op, primal, parts)
        own[op.name] = Custom(op, parts)
    return rules


def _named(op: ir.Operation, role: str, known: dict[str, ir.Operation]) -> ir.Operation:
    name = functions.named(op, role)
    if name not in known:
        raise _wrong(
            op, f"{role}=@{name}: no such function.{nearest(name, list(known))}"
        )
    if role != "primal" and len(known[name].regions[0].blocks) != 1:
        raise _wrong(op, f"{role}=@{name} must have a body of one block")
    return known[name]


def _at(op: ir.Operation) -> str:
    return location_string(op.location)


def _wrong(op: ir.Operation, what: str) -> PassError:
    return PassError(f"{_at(op)}: {op.name}: {what}")


def _type(function: ir.Operation) -> tuple[list[ir.Type], list[ir.Type]]:
    type_ = function_type(function)
    return list(type_.inputs), list(type_.results)


def _differentiable(types: Sequence[ir.Type]) -> list[ir.Type]:
    return [t for t in types if hlo.is_differentiable(t)]


def _check_vjp(
    op: ir.Operation, primal: ir.Operation, parts: dict[str, ir.Operation]
) -> None:
    inputs, results = _type(primal)
    takes, gives = _type(parts["forward"])
    _must(op, parts["forward"], "take what the primal takes", inputs, takes)
    _must(
        op, parts["forward"], "return its results first", results, gives[: len(results)]
    )
    residuals = gives[len(results) :]
    takes, gives = _type(parts["backward"])
    wanted = [*residuals, *_differentiable(results)]
    _must(op, parts["backward"], "take residuals, then cotangents", wanted, takes)
    wanted = _differentiable(inputs)
    _must(op, parts["backward"], "return the inputs' cotangents", wanted, gives)


def _check_jvp(
    op: ir.Operation, primal: ir.Operation, parts: dict[str, ir.Operation]
) -> None:
    inputs, results = _type(primal)
    takes, gives = _type(parts["jvp"])
    wanted = [*inputs, *_differentiable(inputs)]
    _must(op, parts["jvp"], "take inputs, then their tangents", wanted, takes)
    wanted = [*results, *_differentiable(results)]
    _must(op, parts["jvp"], "return results, then their tangents", wanted, gives)


def _check_without(
    op: ir.Operation, primal: ir.Operation, parts: dict[str, ir.Operation]
) -> None:
    count, takes = integer(op, "count"), len(_type(primal)[0])
    if count > takes:
        name = functions.symbol(primal)
        raise _wrong(op, f"count={count}, but @{name} has {takes} operands")


CHECKS = {
    "pcp.custom_vjp": _check_vjp,
    "pcp.custom_jvp": _check_jvp,
    functions.WITHOUT: _check_without,
}


def _must(
    op: ir.Operation,
    function: ir.Operation,
    what: str,
    wanted: list[ir.Type],
    found: list[ir.Type],
) -> None:
    if wanted != found:
        listed = [", ".join(map(str, types)) or "nothing" for types in (wanted, found)]
        raise _wrong(
            op,
            f"@{functions.symbol(function)} must {what}: ({listed[0]}), not "
            f"({listed[1]})",
        )


# --- the rules ---


def reverse(at: Site) -> Sequence[Value | None]:
    """The cotangents of a call's or a composite's inputs."""
    rules = _rules_of(at.op)
    if (without := rules.get(functions.WITHOUT)) is not None:
        if is_transposing() and "linear" in without.op.attributes:
            return _by_body(at)
        wanted = {v for v, w in zip(at.inputs, at.wanted, strict=True) if w}
        _refuse(at.op, without, wanted)
    if (custom := rules.get("pcp.custom_vjp")) is not None:
        return _by_vjp(at, custom)
    if (custom := rules.get("pcp.custom_jvp")) is not None:
        return _by_body(at) if is_transposing() else _by_jvp(at, custom)
    if (rule := registered(at.op)) is not None:
        return rule.vjp(at)
    source = next(at.active[v] for v in at.inputs if v in at.active)
    raise registry.missing_function(at.op, functions.callee(at.op), source)


def forward(op: ir.Operation, tangents: Tangents) -> bool:
    """Set the tangents of a call's results; False where reverse mode must serve."""
    rules = _rules_of(op)
    if not rules:
        if registered(op) is None:
            raise registry.missing_function(
                op, functions.callee(op), "an input with a tangent"
            )
        return False
    if (without := rules.get(functions.WITHOUT)) is not None:
        _refuse(op, without, tangents)
    if (custom := rules.get("pcp.custom_jvp")) is None:
        raise PassError(
            f"{_at(op)}: {op.name}: @{functions.callee(op)} has a pcp.custom_vjp, "
            "which says nothing of forward mode (as jax.custom_vjp); give it a "
            "pcp.custom_jvp, which serves both"
        )
    given = [materialize(tangents.get(v), v) for v in _floats(op.operands)]
    values, _ = _splice(custom.parts["jvp"], [*op.operands, *given])
    count = len(op.results)
    _take_over(op, values[:count])
    tangents.update(zip(_floats(op.results), values[count:], strict=True))
    tangents.update(zip(_floats(values[:count]), values[count:], strict=True))
    return True


def _refuse(op: ir.Operation, without: Custom, active: Container[Value]) -> None:
    """The error, if an operand is active that has no derivative."""
    for i in range(integer(without.op, "count")):
        if op.operands[i] in active:
            raise MissingRule(
                f"{_at(op)}: {op.name}: @{functions.callee(op)} has no derivative by "
                f"its operand {i}, and one flows there: {text(without.op, 'why')}"
            )


def _by_vjp(at: Site, custom: Custom) -> list[Value | None]:
    count = len(at.op.results)
    with ir.InsertionPoint(at.op):
        values, _ = _splice(custom.parts["forward"], list(at.op.operands))
    _take_over(at.op, values[:count])
    answers, _ = _splice(
        custom.parts["backward"], [*values[count:], *_cotangents(at, values)]
    )
    return _spread(at, answers)


def _by_jvp(at: Site, custom: Custom) -> list[Value | None]:
    count = len(at.op.results)
    with ir.InsertionPoint(at.op):
        stand_ins = [hlo.zeros(v.type) for v in _floats(at.op.operands)]
        values, ops = _splice(custom.parts["jvp"], [*at.op.operands, *stand_ins])
    _take_over(at.op, values[:count])
    cotangents = Cotangents()
    given = [
        g
        for r, g in zip(at.op.results, at.cotangents, strict=True)
        if hlo.is_differentiable(r)
    ]
    for value, g in zip(values[count:], given, strict=True):
        cotangents.add(value, g)
    with transposing(functions.callee(at.op)):
        tangents = dict.fromkeys(stand_ins, "a tangent of the custom rule")
        pull_back(ops, cotangents, propagate(ops, tangents))
    return _spread(at, [cotangents.take(v) for v in stand_ins])


def _by_body(at: Site) -> list[Value | None]:
    """As if the function had no rule: what it computes is walked back."""
    name = functions.callee(at.op)
    primal = functions.find(_scope.get().module, name)
    with ir.InsertionPoint(at.op):
        values, ops = _splice(primal, list(at.op.operands))
    _take_over(at.op, values)
    wanted = {v: at.active[v] for v, w in zip(at.inputs, at.wanted, strict=True) if w}
    active = propagate(ops, dict(wanted))
    cotangents = Cotangents()
    for value, g in zip(values, at.cotangents, strict=True):
        cotangents.add(value, g)
    pull_back(ops, cotangents, active)
    return [cotangents.take(v) if v in wanted else None for v in at.inputs]


def _floats(values: Sequence[Value]) -> list[Value]:
    return [v for v in values if hlo.is_differentiable(v)]


def _cotangents(at: Site, values: Sequence[Value]) -> list[Value]:
    """One for each differentiable result, zeros where there is none."""
    pairs = zip(at.cotangents, values, strict=False)
    return [materialize(g, v) for g, v in pairs if hlo.is_differentiable(v)]


def _spread(at: Site, answers: Sequence[Value | None]) -> list[Value | None]:
    """The differentiable inputs' cotangents at their places."""
    rest = iter(answers)
    return [next(rest) if hlo.is_differentiable(v) else None for v in at.inputs]


def _take_over(call: ir.Operation, values: Sequence[Value]) -> None:
    """The values are used in the place of the call's; `finish` drops the call.

    Whatever effects it has: the rule's own function has them already.
    """
    for old, new in zip(call.results, values, strict=True):
        old.replace_all_uses_with(new)
    call.attributes[functions.TAKEN_OVER] = ir.UnitAttr.get()


def _splice(
    function: ir.Operation, arguments: list[Value]
) -> tuple[list[Value], list[ir.Operation]]:
    """The function's body at the insertion point, ready to be walked."""
    here = ir.InsertionPoint.current
    with ir.InsertionPoint.after(function):
        husk = function.clone()
    functions.prepare(_scope.get().module, husk, keeps)
    anchor = here.ref_operation or _end_marker(here)
    results, ops = splice(functions.body(husk), arguments, before=anchor)
    husk.erase()
    if here.ref_operation is None:
        anchor.erase()
    return results, ops


def _end_marker(here: ir.InsertionPoint) -> ir.Operation:
    """An op to stand in front of, in a block that has no end yet."""
    with here:
        return ir.Operation.create("builtin.module", regions=1)
