"""Sums over long windows: running sums, and windows that tile what they move over."""

from collections.abc import Sequence
from math import gcd, prod

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_windows import Window, reduce_window
from pcp.passes.simplify.chunks import cut

Value = ir.Value


def running(window: Window, shape: Sequence[int]) -> tuple[int, bool] | None:
    """The dim along which it sums up all before an element, or all behind it (True)."""
    long = [d for d, n in enumerate(window.sizes) if n > 1]
    if len(long) != 1 or window.result_shape(shape) != list(shape):
        return None
    if window != window.with_(
        strides=(1,) * len(shape),
        base_dilations=(1,) * len(shape),
        dilations=(1,) * len(shape),
    ):
        return None
    (dim,) = long
    n, pads = shape[dim], window.padding[dim]
    plain = window.sizes[dim] == n and pads in ((n - 1, 0), (0, n - 1))
    alone = all(p == (0, 0) for d, p in enumerate(window.padding) if d != dim)
    return (dim, pads[0] == 0) if plain and alone else None


def running_sum(x: Value, dim: int, back: bool, chunk: int) -> Value:
    """Running sums of chunks, to each the sum of the chunks before it added."""
    n = hlo.shape_of(x)[dim]
    if n <= chunk:
        return _scan(x, dim, back)
    missing = -n % chunk
    inner = _scan(cut(_padded(x, dim, missing, back), dim, chunk), dim + 1, back)
    before = running_sum(_edge(inner, dim, back), dim, back, chunk)
    before = _moved(before, dim, back)
    kept = [d for d in range(len(hlo.shape_of(inner))) if d != dim + 1]
    total = hlo.add(inner, hlo.broadcast_in_dim(before, hlo.shape_of(inner), kept))
    shape = list(hlo.shape_of(x))
    shape[dim] += missing
    return _part(hlo.reshape(total, shape), dim, missing * back, n)


def _scan(x: Value, dim: int, back: bool) -> Value:
    shape = hlo.shape_of(x)
    n, ones = shape[dim], (1,) * len(shape)
    pads = (0, n - 1) if back else (n - 1, 0)
    window = Window(
        tuple(n if d == dim else 1 for d in range(len(shape))),
        ones,
        ones,
        ones,
        tuple(pads if d == dim else (0, 0) for d in range(len(shape))),
    )
    zero = hlo.scalar(0, hlo.element_type(x))
    return reduce_window([x], [zero], window, hlo.add)[0]


def _edge(x: Value, dim: int, back: bool) -> Value:
    """The sums of whole chunks, which lie along `dim`, their elements behind it."""
    shape = list(hlo.shape_of(x))
    size = shape.pop(dim + 1)
    return hlo.reshape(_part(x, dim + 1, 0 if back else size - 1, 1), shape)


def _moved(x: Value, dim: int, back: bool) -> Value:
    """Elements one place on, a zero for the first."""
    n = hlo.shape_of(x)[dim]
    return _padded(_part(x, dim, 1 if back else 0, n - 1), dim, 1, not back)


def _part(x: Value, dim: int, start: int, size: int) -> Value:
    shape = hlo.shape_of(x)
    starts, limits = [0] * len(shape), list(shape)
    starts[dim], limits[dim] = start, start + size
    return hlo.slice_(x, starts, limits)


def _padded(x: Value, dim: int, many: int, front: bool) -> Value:
    """Zeros at one end."""
    none = [0] * len(hlo.shape_of(x))
    some = [many if d == dim else 0 for d in range(len(none))]
    zero = hlo.scalar(0, hlo.element_type(x))
    return hlo.pad(x, zero, some if front else none, none if front else some)


def in_steps(
    window: Window, shape: Sequence[int], most: int
) -> tuple[Window, Window] | None:
    """Two windows, one after the other, that sum what this one does; None: no such.

    Where the window moves by several elements at once, these are summed up first, at
    most `most` of them.
    """
    if any(n != 1 for n in (*window.base_dilations, *window.dilations)):
        return None
    steps = list[int]()
    for n, size, stride, pads in zip(
        shape, window.sizes, window.strides, window.padding, strict=True
    ):
        common = gcd(size, stride, *pads, n if pads[1] else 0)
        room = min(common, most // prod(steps))
        steps.append(max(k for k in range(1, room + 1) if common % k == 0))
    if prod(steps) == 1:
        return None
    first = window.with_(
        sizes=tuple(steps), strides=tuple(steps), padding=((0, 0),) * len(steps)
    )
    each = tuple(zip(window.padding, steps, strict=True))
    return first, window.with_(
        sizes=tuple(a // k for a, k in zip(window.sizes, steps, strict=True)),
        strides=tuple(a // k for a, k in zip(window.strides, steps, strict=True)),
        padding=tuple((low // k, high // k) for (low, high), k in each),
    )
