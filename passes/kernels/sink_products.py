"""pcp-sink-products: a product stands where what follows it can be its kernel's end."""

from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import before, defining, functions, is_pure
from pcp.passes.core.rewriting import replace as put
from pcp.passes.kernels.linalg import foreign, kernel

#: What moves: a product, and the reshape between it and its user.
_MOVED = ("stablehlo.dot_general", "stablehlo.reshape")

#: What IREE computes at the end of a product's kernel, of what it and others give.
_ENDS = frozenset(f"stablehlo.{x}" for x in ("add", "subtract", "multiply", "divide"))

#: Between a sum and the op that reads it for each element of a row.
_REPEATED = frozenset(
    f"stablehlo.{x}" for x in ("broadcast_in_dim", "negate", "reshape")
)


@dataclass(frozen=True)
class SinkProducts(Pass):
    """Move products behind all that they need not wait for, and sums into kernels.

    IREE computes what follows a product in the product's kernel, if all else that it
    reads is there before the product: a product moves down to its first user, past
    nothing that has an effect. IREE prefers to compute it with a sum that it reads; so
    such a sum gets a kernel of its own. Values stay the same bit for bit. Before and
    after:

        %0 = stablehlo.dot_general %x, %y, ...
        %1 = stablehlo.reduce(%z init: %zero) applies stablehlo.add ...
        %2 = stablehlo.add %0, (broadcast %1)

        %1 = "flow.dispatch.region"() ({ stablehlo.reduce(%z init: %zero) ... })
        %0 = stablehlo.dot_general %x, %y, ...
        %2 = stablehlo.add %0, (broadcast %1)
    """

    name = "pcp-sink-products"

    def run(self, module: ir.Module) -> None:
        """Reorder the blocks of functions in place."""
        with foreign(module.context):
            for function in functions(module):
                for block in function.regions[0].blocks:
                    _sink(block)
                    _isolate_sums(block)


def _sink(block: ir.Block) -> None:
    """From the last op to the first: what a moved op uses can follow it."""
    later: list[ir.Operation] = []  # the next op last
    for view in reversed(list(block.operations)):
        op = view.operation
        place = len(later)
        if op.name in _MOVED:
            place = _place(op, later)
            if place < len(later):
                op.move_before(later[place - 1])
        later.insert(place, op)


def _place(op: ir.Operation, later: list[ir.Operation]) -> int:
    """Behind how many of the later ops, counted from the end, it is to stand."""
    users = {_within(use.owner.operation, op.block) for use in op.result.uses}
    for passed, other in enumerate(reversed(later)):
        if other in users:
            return len(later) - passed
        if not is_pure(other):
            break
    return len(later)


def _within(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """The op of the block that an op is, or is inside of."""
    while op.block != block:
        op = op.parent.operation
    return op


def _isolate_sums(block: ir.Block) -> None:
    for view in list(block.operations):
        if view.operation.name == "stablehlo.dot_general":
            for total in _sums_at_end(view.operation):
                with before(total):
                    put(total, [kernel(total.result.type, lambda t=total: _copy(t))])


def _copy(op: ir.Operation) -> ir.Value:
    return op.clone().operation.result


def _sums_at_end(product: ir.Operation) -> list[ir.Operation]:
    """The sums in the product's block that its one user reads beside it."""
    value = product.result
    while (op := _only_user(value)) is not None and op.name == "stablehlo.reshape":
        value = op.result
    if op is None or op.name not in _ENDS:
        return []
    found = (_sum_behind(x) for x in op.operands if x != value)
    return [x for x in found if x is not None and x.block == product.block]


def _only_user(value: ir.Value) -> ir.Operation | None:
    uses = list(value.uses)
    return uses[0].owner.operation if len(uses) == 1 else None


def _sum_behind(value: ir.Value) -> ir.Operation | None:
    while (op := defining(value)) is not None and op.name in _REPEATED:
        value = op.operands[0]
    return op if op is not None and _is_sum(op) else None


def _is_sum(op: ir.Operation) -> bool:
    return op.name == "stablehlo.reduce" and len(op.results) == 1
