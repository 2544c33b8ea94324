"""convolution: any stride, padding, dilation, groups, layout and reversal.

Sizes per spatial dimension, all after dilation: L of the input, k of the kernel,
o of the result. Either cotangent is itself a convolution.
"""

from dataclasses import replace

from pcp.autodiff.core.kinds import Bilinear, Site
from pcp.autodiff.core.values import wide
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_windows import Convolution, Dims, convolution, dilated

Value = ir.Value


def _extents(at: Site, how: Convolution) -> list[tuple[int, int, int]]:
    """(L, k, o) along each spatial dimension."""
    lhs, rhs, result = (hlo.shape_of(x) for x in (at[0], at[1], at.y))
    return [
        (
            dilated(lhs[a], how.lhs_dilation[i]),
            dilated(rhs[b], how.rhs_dilation[i]),
            dilated(result[c], how.strides[i]),
        )
        for i, (a, b, c) in enumerate(
            zip(how.dims.input[2], how.dims.kernel[2], how.dims.output[2], strict=True)
        )
    ]


def _canonical(dims: tuple[int, int, tuple[int, ...]]) -> list[int]:
    """The permutation that brings (batch, feature, spatial) in this order."""
    return [dims[0], dims[1], *dims[2]]


def _inverse(permutation: list[int]) -> list[int]:
    return [permutation.index(i) for i in range(len(permutation))]


def _standard(rank: int) -> Dims:
    """Batch, feature, spatial for all three; (in, out, spatial) for the kernel."""
    spatial = tuple(range(2, 2 + rank))
    return Dims((0, 1, spatial), (0, 1, spatial), (0, 1, spatial))


def _split(x: Value, dimension: int, groups: int) -> Value:
    """Dimension of n to (groups, n/groups)."""
    shape = list(hlo.shape_of(x))
    shape[dimension : dimension + 1] = [groups, shape[dimension] // groups]
    return hlo.reshape(x, shape)


def _merge_groups(x: Value, source: int, target: int, groups: int) -> Value:
    """Move the major part (groups) of dimension `source` to the front of `target`."""
    if groups == 1:
        return x
    split = _split(x, source, groups)
    rank = len(hlo.shape_of(split))
    order = [d for d in range(rank) if d != source]
    shifted = target + (1 if target > source else 0)
    order.insert(order.index(shifted), source)
    moved = hlo.transpose(split, order)
    shape = list(hlo.shape_of(moved))
    at = order.index(source)
    shape[at : at + 2] = [shape[at] * shape[at + 1]]
    return hlo.reshape(moved, shape)


def _lhs(at: Site, g: Value) -> Value:
    """Correlate g, spread by the stride, with the kernel flipped.

    Feature and batch groups both make the out-features of the kernel a group
    index; with batch groups that index returns to the batch.
    """
    how = Convolution.of(at.op)
    rank = len(how.strides)
    kernel = hlo.transpose(at[1], _canonical(how.dims.kernel))
    kernel = hlo.reverse(kernel, [2 + i for i in range(rank) if not how.reversal[i]])
    groups = how.feature_groups * how.batch_groups
    kernel = _merge_groups(kernel, 1, 0, groups)
    padding = tuple(
        (k - 1 - low, length + low - o)
        for (length, k, o), (low, _) in zip(_extents(at, how), how.padding, strict=True)
    )
    swapped = replace(_standard(rank), kernel=(1, 0, tuple(range(2, 2 + rank))))
    backward = Convolution(
        swapped,
        strides=how.lhs_dilation,
        padding=padding,
        lhs_dilation=how.strides,
        rhs_dilation=how.rhs_dilation,
        reversal=(False,) * rank,
        feature_groups=groups,
        precision=how.precision,
    )
    spread = hlo.transpose(g, _canonical(how.dims.output))
    kernel = hlo.convert(kernel, hlo.element_type(g))
    result = convolution(spread, kernel, backward, wide(hlo.element_type(g)))
    result = _merge_groups(result, 1, 0, how.batch_groups)
    result = hlo.transpose(result, _inverse(_canonical(how.dims.input)))
    return hlo.convert(result, hlo.element_type(at[0]))


def _rhs(at: Site, g: Value) -> Value:
    """Correlate the input with g: batch becomes the contracted feature."""
    how = Convolution.of(at.op)
    rank = len(how.strides)
    if not hlo.size(g):
        return hlo.zeros(at[1].type)
    spatial = tuple(range(2, 2 + rank))
    dims = Dims((1, 0, spatial), (0, 1, spatial), (0, 1, spatial))
    padding = tuple(
        (low, o - length + k - low - 1)
        for (length, k, o), (low, _) in zip(_extents(at, how), how.padding, strict=True)
    )
    backward = Convolution(
        dims,
        strides=how.rhs_dilation,
        padding=padding,
        lhs_dilation=how.lhs_dilation,
        rhs_dilation=how.strides,
        reversal=(False,) * rank,
        feature_groups=how.batch_groups,
        batch_groups=how.feature_groups,
        precision=how.precision,
    )
    image = hlo.transpose(at[0], _canonical(how.dims.input))
    moved = hlo.transpose(g, _canonical(how.dims.output))
    image = hlo.convert(image, hlo.element_type(g))
    result = convolution(image, moved, backward, wide(hlo.element_type(g)))
    result = hlo.reverse(result, [2 + i for i in range(rank) if how.reversal[i]])
    result = hlo.transpose(result, _inverse(_canonical(how.dims.kernel)))
    return hlo.convert(result, hlo.element_type(at[1]))


RULES = {"convolution": Bilinear(_lhs, _rhs)}
