"""pcp-expand-batch-dims: batching dims that a reshape merged are apart again.

PyTorch multiplies stacks of matrices along one dim, `[batch * heads, t, d]`. A mesh
that cuts the heads cuts no piece out of it: each device would gather all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import (
    attributes,
    before,
    defining,
    functions,
    operations,
    replace,
    sweep,
)

Value = ir.Value


@dataclass(frozen=True)
class ExpandBatchDims(Pass):
    """Give a product the batching dims that its operands had before a reshape.

    Assumes static shapes. A batching dim of which one operand says, by the reshape that
    made it, which dims it was is these dims again; the other operand and the result are
    reshaped to them and back. A reshape that undoes one of these is left out. The
    numbers that are multiplied and added stay the same.

        %a = stablehlo.reshape %q : (tensor<8x4x16x2xf32>) -> tensor<32x16x2xf32>
        %b = stablehlo.reshape %k : (tensor<8x4x16x2xf32>) -> tensor<32x16x2xf32>
        %c = stablehlo.dot_general %a, %b, batching_dims = [0] x [0],
            contracting_dims = [2] x [2]
            : (tensor<32x16x2xf32>, tensor<32x16x2xf32>) -> tensor<32x16x16xf32>
        %0 = stablehlo.reshape %c : (tensor<32x16x16xf32>) -> tensor<8x4x16x16xf32>
    becomes
        %0 = stablehlo.dot_general %q, %k, batching_dims = [0, 1] x [0, 1],
            contracting_dims = [3] x [3]
            : (tensor<8x4x16x2xf32>, tensor<8x4x16x2xf32>) -> tensor<8x4x16x16xf32>
    """

    name = "pcp-expand-batch-dims"

    def run(self, module: ir.Module) -> None:
        """Rewrite in place."""
        for op in operations(module):
            if op.name == "stablehlo.dot_general":
                _expand(op)
        for function in functions(module):
            sweep(function)


def _expand(op: ir.Operation) -> None:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    sides = (
        (numbers.lhs_batching_dimensions, numbers.lhs_contracting_dimensions),
        (numbers.rhs_batching_dimensions, numbers.rhs_contracting_dimensions),
    )
    batches = [list(batch) for batch, _ in sides]
    apart = [
        next(
            (f for v, d in zip(op.operands, pair, strict=True) if (f := merged(v, d))),
            (),
        )
        for pair in zip(*batches, strict=True)
    ]
    if not any(apart):
        return
    with before(op):
        operands, places = [], []
        for value, batch, (_, contracting) in zip(
            op.operands, batches, sides, strict=True
        ):
            parts = dict(zip(batch, apart, strict=True))
            shape, starts = _expanded(hlo.shape_of(value), parts)
            operands.append(_reshaped(value, shape))
            spread = [
                starts[d] + i for d in batch for i in range(len(parts[d] or (None,)))
            ]
            places.append((spread, [starts[d] for d in contracting]))
        kept = attributes(op)
        (lb, lc), (rb, rc) = places
        kept["dot_dimension_numbers"] = stablehlo.DotDimensionNumbers.get(
            lb, rb, lc, rc
        )
        shape, _ = _expanded(hlo.shape_of(op.result), dict(enumerate(apart)))
        type_ = hlo.tensor(shape, hlo.element_type(op.result))
        made = hlo.op("dot_general", operands, [type_], **kept).result
        for user in {use.owner.operation for use in op.result.uses}:
            if user.name == "stablehlo.reshape":
                with before(user):
                    replace(user, [_reshaped(made, hlo.shape_of(user.results[0]))])
        replace(op, [hlo.reshape(made, hlo.shape_of(op.result))])


def merged(value: Value, dim: int) -> tuple[int, ...]:
    """The dims of which a reshape made dimension `dim` of its result; () where of one.

    Dims of size 1 count for nothing: they stay with what is merged beside them.
    """
    source = defining(value, "reshape")
    if source is None:
        return ()
    old, new = hlo.shape_of(source.operands[0]), hlo.shape_of(value)
    first = _boundary(old, _product(new[:dim]))
    last = _boundary(old, _product(new[: dim + 1]))
    if first is None or last is None:
        return ()
    parts = tuple(n for n in old[first:last] if n != 1)
    return parts if len(parts) > 1 and _product(parts) == new[dim] else ()


def _boundary(shape: Sequence[int], size: int) -> int | None:
    """How many leading dims have `size` elements together; None where none do."""
    found = 1
    for d, n in enumerate(shape):
        if found == size:
            return d
        found *= n
    return len(shape) if found == size else None


def _product(sizes: Sequence[int]) -> int:
    found = 1
    for n in sizes:
        found *= n
    return found


def _expanded(
    shape: Sequence[int], apart: dict[int, tuple[int, ...]]
) -> tuple[list[int], list[int]]:
    """A shape with the dims of `apart` taken apart, and where each dim begins in it."""
    found: list[int] = []
    starts = []
    for d, n in enumerate(shape):
        starts.append(len(found))
        found += apart.get(d) or (n,)
    return found, starts


def _reshaped(value: Value, shape: Sequence[int]) -> Value:
    """The value in the shape, without the reshape that it may come from."""
    source = defining(value, "reshape")
    value = value if source is None else source.operands[0]
    same = hlo.shape_of(value) == tuple(shape)
    return value if same else hlo.reshape(value, shape)
