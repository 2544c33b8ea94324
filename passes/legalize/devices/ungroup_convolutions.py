"""`pcp-ungroup-convolutions`: grouped convolutions as products batched over the groups.

IREE computes a grouped convolution with the groups in front, and its SPIR-V code
generator lets one thread set an element to zero and another one add to it, with nothing
in between: without an error the result is zero where the first comes last. Depthwise
convolutions have an op of their own, which is right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_windows import Convolution, dilated, positions
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import before, operations

Places = tuple[int, ...]


@dataclass(frozen=True)
class UngroupConvolutions(Pass):
    """Write grouped convolutions out as sums of `dot_general`, depthwise ones excepted.

    Assumes nothing; leaves the same sums in another order. There is one product for
    each place of the kernel, or, where these are fewer, for each place of the result.
    Before and after, for a kernel of 3 by 3:

        %y = stablehlo.convolution(%x, %k) ... {feature_group_count = 2, ...}

        %0 = stablehlo.dot_general %x00, %k00, batching_dims = [0] x [1], ...
        ... the eight others, added up ...
        %y = ... the groups beside their features again ...
    """

    name = "pcp-ungroup-convolutions"

    def run(self, module: ir.Module) -> None:
        """Rewrite `module` in place."""
        for op in operations(module):
            if op.name == "stablehlo.convolution" and _is_grouped(op):
                with before(op):
                    op.result.replace_all_uses_with(_ungrouped(op))
                op.erase()


def _is_grouped(op: ir.Operation) -> bool:
    how = Convolution.of(op)
    depthwise = hlo.shape_of(op.operands[1])[how.dims.kernel[0]] == 1
    grouped = how.batch_groups > 1 or (how.feature_groups > 1 and not depthwise)
    return grouped and all(hlo.size(x) for x in (*op.operands, op.result))


def _ungrouped(op: ir.Operation) -> ir.Value:
    how = Convolution.of(op)
    lhs, rhs = _input(op.operands[0], how), _kernel(op.operands[1], how)
    element = hlo.element_type(op.result)
    rank = len(how.strides)
    window = hlo.shape_of(rhs)[:rank]
    space = hlo.shape_of(lhs)[2:-1]
    sizes = zip(space, window, how.rhs_dilation, how.strides, strict=True)
    count = tuple(positions(n, dilated(k, d), s) for n, k, d, s in sizes)
    if prod(window) <= prod(count):
        total = _by_kernel(lhs, rhs, how, count, element)
    else:
        total = _by_result(lhs, rhs, how, count, element)
    return _output(total, how)


# --- layouts -----------------------------------------------------------------


def _input(x: ir.Value, how: Convolution) -> ir.Value:
    """As [group, batch, space..., feature], padded and dilated."""
    batch, feature, space = how.dims.input
    x = hlo.transpose(x, (batch, *space, feature))
    shape = list(hlo.shape_of(x))
    groups = max(how.feature_groups, how.batch_groups)
    if how.batch_groups > 1:
        x = hlo.reshape(x, [groups, shape[0] // groups, *shape[1:]])
    else:
        x = hlo.reshape(x, [*shape[:-1], groups, shape[-1] // groups])
        x = hlo.transpose(x, (len(shape) - 1, *range(len(shape) - 1), len(shape)))
    edges = [(0, 0), (0, 0), *how.padding, (0, 0)]
    between = [0, 0, *(d - 1 for d in how.lhs_dilation), 0]
    zero = hlo.scalar(0, hlo.element_type(x))
    return hlo.pad(x, zero, [e[0] for e in edges], [e[1] for e in edges], between)


def _kernel(x: ir.Value, how: Convolution) -> ir.Value:
    """As [space..., input feature, group, output feature], turned round if so said."""
    given, made, space = how.dims.kernel
    x = hlo.transpose(x, (*space, given, made))
    shape = list(hlo.shape_of(x))
    groups = max(how.feature_groups, how.batch_groups)
    x = hlo.reshape(x, [*shape[:-1], groups, shape[-1] // groups])
    return hlo.reverse(x, [i for i, back in enumerate(how.reversal) if back])


def _output(x: ir.Value, how: Convolution) -> ir.Value:
    """[group, batch, space..., feature] in the places of the convolution's result."""
    rank = len(hlo.shape_of(x))
    x = hlo.transpose(x, (*range(1, rank - 1), 0, rank - 1))
    shape = hlo.shape_of(x)
    x = hlo.reshape(x, [*shape[:-2], shape[-2] * shape[-1]])
    batch, feature, space = how.dims.output
    order = (batch, *space, feature)  # where each dimension of x goes
    return hlo.transpose(x, [order.index(d) for d in range(rank - 1)])


# --- products ----------------------------------------------------------------


def _by_kernel(
    lhs: ir.Value, rhs: ir.Value, how: Convolution, count: Places, element: ir.Type
) -> ir.Value:
    """Σ over the places of the kernel."""
    rank = len(count)
    last = len(hlo.shape_of(lhs)) - 1
    total = None
    for place in _places(hlo.shape_of(rhs)[:rank]):
        start = _times(place, how.rhs_dilation)
        seen = _window(lhs, start, count, how.strides)
        ends = [p + 1 for p in place]
        there = hlo.shape_of(rhs)[rank:]
        weights = hlo.slice_(rhs, [*place, 0, 0, 0], [*ends, *there])
        weights = hlo.reshape(weights, there)
        term = hlo.dot_general(
            seen, weights, batch=([0], [1]), contract=([last], [0]), element=element
        )
        total = term if total is None else hlo.add(total, term)
    assert total is not None  # an empty kernel is left alone
    return total


def _by_result(
    lhs: ir.Value, rhs: ir.Value, how: Convolution, count: Places, element: ir.Type
) -> ir.Value:
    """A product for each place of the result, over the whole kernel."""
    rank = len(count)
    window = hlo.shape_of(rhs)[:rank]
    summed = list(range(2, rank + 3)), list(range(rank + 1))
    found = []
    for place in _places(count):
        start = _times(place, how.strides)
        seen = _window(lhs, start, window, how.rhs_dilation)
        one = hlo.dot_general(
            seen, rhs, batch=([0], [rank + 1]), contract=summed, element=element
        )
        groups, batch, features = hlo.shape_of(one)
        found.append(hlo.reshape(one, [groups, batch, 1, features]))
    whole = hlo.concatenate(found, 2)
    groups, batch, _, features = hlo.shape_of(whole)
    return hlo.reshape(whole, [groups, batch, *count, features])


def _places(sizes: Sequence[int]) -> Iterator[Places]:
    return product(*map(range, sizes))


def _times(place: Places, steps: Sequence[int]) -> list[int]:
    return [p * s for p, s in zip(place, steps, strict=True)]


def _window(
    lhs: ir.Value, start: Sequence[int], count: Sequence[int], steps: Sequence[int]
) -> ir.Value:
    """`count` elements from `start` on, `steps` apart, of each spatial dimension."""
    shape = hlo.shape_of(lhs)
    ends = [p + (n - 1) * s + 1 for p, n, s in zip(start, count, steps, strict=True)]
    return hlo.slice_(
        lhs,
        [0, 0, *start, 0],
        [*shape[:2], *ends, shape[-1]],
        [1, 1, *steps, 1],
    )
