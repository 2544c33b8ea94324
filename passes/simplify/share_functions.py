"""pcp-share-functions: of functions that compute the same, one is compiled.

A model without dropout is evaluated by what its loss is: @eval is @main again, or calls
it and does no more.
"""

from dataclasses import dataclass

from pcp.dialect.base import symbol
from pcp.dialect.bindings import ir
from pcp.passes.core import functions, rewriting
from pcp.passes.core.base import Pass
from pcp.passes.core.donation import CONSUME, OUTPUT
from pcp.passes.core.functions import PARTS


@dataclass(frozen=True)
class ShareFunctions(Pass):
    """Make a public function whose body an earlier one has a call of that one.

    So it is with one that consists of calls of public functions already.

    Names, roles and layouts of arguments and results are a function's own and may
    differ; what it computes may not, in any op, attribute or order. Functions that give
    an argument's storage away stay as they are. Assumes that collectives have no
    numbers yet (`pcp-lower-to-runtime`). Leaves what `pcp-split-functions` leaves: a
    function marked `pcp.parts`, which IREE never sees, and which no other one calls.

    Before:

        func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.negate %a : tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        func.func @eval(%a: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.negate %a : tensor<4xf32>
          return %0 : tensor<4xf32>
        }

    After:

        func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
          %0 = stablehlo.negate %a : tensor<4xf32>
          return %0 : tensor<4xf32>
        }
        func.func @eval(%a: tensor<4xf32>) -> tensor<4xf32> attributes {pcp.parts} {
          %0 = call @main(%a) : (tensor<4xf32>) -> tensor<4xf32>
          return %0 : tensor<4xf32>
        }
    """

    name = "pcp-share-functions"

    def run(self, module: ir.Module) -> None:
        """Share the public functions that can be."""
        with module.context:
            ops = rewriting.operations(module)
            called = {symbol(op, "callee") for op in ops if op.name == "func.call"}
            free = [
                function
                for function in rewriting.functions(module)
                if functions.symbol_name(function) not in called
            ]
            for function in free:
                if _only_calls(module, function):
                    function.attributes[PARTS] = ir.UnitAttr.get()
            first: dict[str, ir.Operation] = {}
            for function in filter(_may_share, rewriting.functions(module)):
                kept = first.setdefault(_computed(function), function)
                if kept is not function and function in free:
                    _call(function, functions.symbol_name(kept))


def _may_share(function: ir.Operation) -> bool:
    if function.name != "func.func" or not function.regions[0].blocks:
        return False
    if not functions.is_public(function) or PARTS in function.attributes:
        return False
    said = functions.argument_attributes(function)
    given = any(mark in each for each in said for mark in (CONSUME, OUTPUT))
    return not given and len(functions.entry(function).operations) > 1


def _only_calls(module: ir.Module, function: ir.Operation) -> bool:
    """Whether it hands values to public functions that compute, and does no more."""
    calls = _calls(function) if _may_share(function) else []
    found = [functions.find(module, symbol(call, "callee")) for call in calls]
    return bool(calls) and all(
        callee is not None and _may_share(callee) and not _calls(callee)
        for callee in found
    )


def _calls(function: ir.Operation) -> list[ir.Operation]:
    """The calls that it consists of; none where it computes something itself."""
    *ops, _ = [view.operation for view in functions.entry(function).operations]
    return ops if all(op.name == "func.call" for op in ops) else []


def _computed(function: ir.Operation) -> str:
    """The function as text, without what it is called and what its border says."""
    bare = function.clone()
    try:
        for name in [*bare.attributes]:
            if name not in ("sym_name", "function_type"):
                del bare.attributes[name]
        bare.attributes["sym_name"] = ir.StringAttr.get("f")
        return bare.get_asm(use_local_scope=True)
    finally:
        bare.erase()


def _call(function: ir.Operation, name: str) -> None:
    """A call of the function of that name, in place of its ops."""
    block = functions.entry(function)
    *ops, end = [view.operation for view in block.operations]
    results = [value.type for value in end.operands]
    with rewriting.before(end):
        made = functions.call(name, list(block.arguments), results)
    for number, value in enumerate(made):
        end.operands[number] = value
    for op in reversed(ops):
        op.erase()
    function.attributes[PARTS] = ir.UnitAttr.get()
