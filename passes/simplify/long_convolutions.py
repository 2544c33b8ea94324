"""A convolution with few places and long sums as one product a place.

The gradient of a kernel is such a one: its sums are over all images and all of their
pixels, and it has as many places as the kernel has.
"""

from collections.abc import Sequence
from itertools import product
from math import prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_windows import Convolution
from pcp.passes.simplify.chunks import cut

Value = ir.Value

PLACES = 64
"""Most of them: each is ops of its own."""

PIXELS = 4
"""To a place, at least, in the kernel: others are not the gradient of a kernel."""


def terms(how: Convolution, kernel: Value) -> int:
    """Of each sum, those that padding makes zeros among them."""
    shape = hlo.shape_of(kernel)
    return prod(shape[d] for d in (how.dims.kernel[0], *how.dims.kernel[2]))


def is_of_few_places(how: Convolution, kernel: Value, result: Value) -> bool:
    """Whether it has so few places that each may be a product of its own."""
    places = prod(hlo.shape_of(result)[d] for d in how.dims.output[2])
    pixels = prod(hlo.shape_of(kernel)[d] for d in how.dims.kernel[2])
    return 0 < places <= min(PLACES, pixels // PIXELS)


def is_of_single_terms(how: Convolution, result: Value) -> bool:
    """Whether a place's product is of one number with one, as of a depthwise kernel.

    IREE's own convolution is twice as fast as these.
    """
    shape = hlo.shape_of(result)
    features = shape[how.dims.output[1]] // (how.feature_groups * how.batch_groups)
    return features * shape[how.dims.output[0]] == 1


def as_products(op: ir.Operation, how: Convolution) -> Value:
    """The same result."""
    x, kernel = op.operands
    x = _spread(x, how)
    kernel = hlo.reverse(kernel, [d for d, r in _reversed(how) if r])
    result = hlo.shape_of(op.result)
    counts = [result[d] for d in how.dims.output[2]]
    places = product(*map(range, counts))
    values = [_product(op, x, kernel, how, place) for place in places]
    batch, features = result[how.dims.output[0]], result[how.dims.output[1]]
    stacked = [hlo.reshape(v, [1, batch, features]) for v in values]
    value = hlo.concatenate(stacked, 0) if len(stacked) > 1 else stacked[0]
    value = hlo.reshape(value, [*counts, batch, features])
    order = [*how.dims.output[2], how.dims.output[0], how.dims.output[1]]
    back = sorted(range(len(order)), key=order.__getitem__)
    return hlo.transpose(value, back)


def _reversed(how: Convolution) -> Sequence[tuple[int, bool]]:
    return list(zip(how.dims.kernel[2], how.reversal, strict=True))


def _spread(x: Value, how: Convolution) -> Value:
    """With its padding, and zeros between its elements."""
    low, high, between = ([0] * len(hlo.shape_of(x)) for _ in range(3))
    for i, d in enumerate(how.dims.input[2]):
        (low[d], high[d]), between[d] = how.padding[i], how.lhs_dilation[i] - 1
    if not any((*low, *high, *between)):
        return x
    return hlo.pad(x, hlo.scalar(0, hlo.element_type(x)), low, high, between)


def _product(
    op: ir.Operation, x: Value, kernel: Value, how: Convolution, place: Sequence[int]
) -> Value:
    """What the kernel makes of the window at a place: `[batch, features]`.

    Groups are a dim of their own in front of it.
    """
    rows, channels, _ = how.dims.input
    grouped = rows if how.batch_groups > 1 else channels
    groups = how.batch_groups * how.feature_groups
    window = _in_front(_window(x, kernel, how, place), grouped, groups)
    weights = _in_front(kernel, how.dims.kernel[1], groups)
    read, written, behind = how.dims.input, how.dims.kernel, int(groups > 1)
    value = hlo.dot_general(
        window,
        weights,
        batch=([0] * behind, [0] * behind),
        contract=(
            [d + behind for d in (read[1], *read[2])],
            [d + behind for d in (written[0], *written[2])],
        ),
        element=hlo.element_type(op.result),
        precision=how.precision,
    )
    if groups == 1:
        return value
    each, batch, features = hlo.shape_of(value)
    return hlo.reshape(hlo.transpose(value, [1, 0, 2]), [batch, each * features])


def _window(x: Value, kernel: Value, how: Convolution, place: Sequence[int]) -> Value:
    shape = hlo.shape_of(x)
    start, limit, step = [0] * len(shape), list(shape), [1] * len(shape)
    for i, d in enumerate(how.dims.input[2]):
        size = hlo.shape_of(kernel)[how.dims.kernel[2][i]]
        start[d], step[d] = place[i] * how.strides[i], how.rhs_dilation[i]
        limit[d] = start[d] + (size - 1) * step[d] + 1
    return hlo.slice_(x, start, limit, step)


def _in_front(x: Value, dim: int, groups: int) -> Value:
    """The dim's groups as one in front of all; of one group the operand as it is."""
    if groups == 1:
        return x
    apart = cut(x, dim, hlo.shape_of(x)[dim] // groups)
    rest = [d for d in range(len(hlo.shape_of(apart))) if d != dim]
    return hlo.transpose(apart, [dim, *rest])
