"""pcp-sink-products: a product that a sum is added to ends in that addition."""

from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import before, defining, functions, is_pure
from pcp.passes.core.rewriting import replace as put
from pcp.passes.kernels.linalg import REGION, foreign, kernel

#: What IREE computes at the end of a product's kernel, of what it and others give.
_ENDS = frozenset(f"stablehlo.{x}" for x in ("add", "subtract", "multiply", "divide"))

#: Between a sum and the op that reads it for each element of a row.
_REPEATED = frozenset(
    f"stablehlo.{x}" for x in ("broadcast_in_dim", "negate", "reshape")
)


@dataclass(frozen=True)
class SinkProducts(Pass):
    """Let a product's kernel end in the arithmetic with rows' sums that follows it.

    IREE computes what follows a product in the product's kernel, if all else that it
    reads is there before the product, but rather in the kernel of a sum that it reads.
    So such a sum gets a kernel of its own, and the product stands behind it, if nothing
    between has an effect. Values stay the same bit for bit. Before and after:

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
                    for view in list(block.operations):
                        if view.operation.name == "stablehlo.dot_general":
                            _end_in_kernel(view.operation)


def _end_in_kernel(product: ir.Operation) -> None:
    """The sums before the product, and the product before its user."""
    moved, user = _chain(product)
    sums = _sums_beside(moved[-1], user)
    if user is None or not sums or not _is_free(product, user):
        return
    for total in sums:
        with before(total):
            put(total, [kernel(total.result.type, lambda t=total: _copy(t))])
    for op in moved:
        op.move_before(user)


def _is_free(product: ir.Operation, user: ir.Operation) -> bool:
    """Whether nothing between the two has an effect."""
    ops = [view.operation for view in product.block.operations]
    return all(
        is_pure(op) or op.name == REGION
        for op in ops[ops.index(product) : ops.index(user)]
    )


def _copy(op: ir.Operation) -> ir.Value:
    return op.clone().operation.result


def _chain(product: ir.Operation) -> tuple[list[ir.Operation], ir.Operation | None]:
    """The product and reshapes of it that nothing else reads, and the one user."""
    moved = [product]
    while (op := _only_user(moved[-1].result)) is not None:
        if op.name != "stablehlo.reshape":
            break
        moved.append(op)
    return moved, op


def _sums_beside(last: ir.Operation, user: ir.Operation | None) -> list[ir.Operation]:
    """The sums in the block that the user reads beside what it gets from `last`."""
    if user is None or user.name not in _ENDS or user.block != last.block:
        return []
    found = (_sum_behind(x) for x in user.operands if x != last.result)
    return [x for x in found if x is not None and x.block == last.block]


def _only_user(value: ir.Value) -> ir.Operation | None:
    uses = list(value.uses)
    return uses[0].owner.operation if len(uses) == 1 else None


def _sum_behind(value: ir.Value) -> ir.Operation | None:
    while (op := defining(value)) is not None and op.name in _REPEATED:
        value = op.operands[0]
    return op if op is not None and _is_sum(op) else None


def _is_sum(op: ir.Operation) -> bool:
    return op.name == "stablehlo.reduce" and len(op.results) == 1
