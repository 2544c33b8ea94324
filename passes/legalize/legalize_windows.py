"""select_and_scatter with overlapping windows, unfolded; convolutions of one place.

IREE takes only windows that tile the operand. Here each of the `prod(window)`
offsets becomes one strided slice: a fold over the offsets finds which one each
window selects, and each offset then adds its part of the source back in place.
The cost is `prod(window)` elementwise passes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_windows import Convolution, convolution, dilated
from pcp.passes.core import constants
from pcp.passes.core.elementwise import body_kind, identity, inline
from pcp.passes.core.rewriting import ints, refuse
from pcp.passes.legalize.legalize_pads import pad_any

Values = Sequence[ir.Value]


@dataclass(frozen=True)
class Windows:
    """Sizes, strides and padding of the windows over the dims of `shape`."""

    shape: tuple[int, ...]
    count: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def tile(self) -> bool:
        """Whether they neither overlap nor reach into padding."""
        apart = all(w <= s for w, s in zip(self.size, self.stride, strict=True))
        return apart and not any(self.low) and not any(self.high)

    @property
    def padded(self) -> list[int]:
        """The dims of the operand with its padding."""
        edges = zip(self.shape, self.low, self.high, strict=True)
        return [n + lo + hi for n, lo, hi in edges]

    def offsets(self) -> Iterator[tuple[int, ...]]:
        """The places in a window, the last dim fastest."""
        return product(*map(range, self.size))

    def limits(self, offset: Sequence[int]) -> list[int]:
        """One past the last element that the windows have at `offset`."""
        spans = zip(offset, self.count, self.stride, strict=True)
        return [o + (n - 1) * s + 1 for o, n, s in spans]


def select_and_scatter(op: ir.Operation) -> Values | None:
    """The unfolded form, or None when IREE takes the op as it is."""
    windows = _windows(op)
    if windows.tile:
        return None
    operand, source, start = op.operands
    kind = body_kind(op.regions[1].blocks[0])
    neutral = identity(kind, hlo.element_type(source)) if kind else None
    if neutral is None:
        refuse(op, "overlapping windows need add, multiply, max or min to scatter with")
    choice = _choose(op, windows, operand)
    scatter = op.regions[1].blocks[0]
    fill = hlo.scalar(neutral, hlo.element_type(source))
    total = hlo.splat(start, windows.padded)
    for i, offset in enumerate(windows.offsets()):
        here = hlo.compare("EQ", choice, hlo.constant_like(choice, i))
        part = hlo.select(here, source, hlo.splat(fill, hlo.shape_of(source)))
        (total,) = inline(scatter, [total, _place(windows, part, fill, offset)])
    inner = [lo + n for lo, n in zip(windows.low, windows.shape, strict=True)]
    return [hlo.slice_(total, windows.low, inner)]


def _windows(op: ir.Operation) -> Windows:
    operand, source = op.operands[0], op.operands[1]
    shape = hlo.shape_of(operand)
    rank = len(shape)
    padding = [(0, 0)] * rank
    if (attribute := hlo.attribute(op, "padding")) is not None:
        padding = np.array(ir.DenseIntElementsAttr(attribute)).reshape(rank, 2).tolist()
    return Windows(
        shape,
        hlo.shape_of(source),
        tuple(ints(op, "window_dimensions") or [1] * rank),
        tuple(ints(op, "window_strides") or [1] * rank),
        tuple(lo for lo, _ in padding),
        tuple(hi for _, hi in padding),
    )


def _choose(op: ir.Operation, windows: Windows, operand: ir.Value) -> ir.Value:
    """Which offset each window selects; padding is never selected."""
    zero = hlo.scalar(0, hlo.element_type(operand))
    edges = any(windows.low) or any(windows.high)
    padded = operand
    if edges:
        padded = hlo.pad(operand, zero, windows.low, windows.high)
    valid = np.pad(
        np.ones(windows.shape, bool),
        list(zip(windows.low, windows.high, strict=True)),
    )
    select = op.regions[0].blocks[0]
    i32 = ir.IntegerType.get_signless(32)
    best = choice = None
    reached = np.zeros(windows.count, bool)
    for i, offset in enumerate(windows.offsets()):
        limits = windows.limits(offset)
        value = hlo.slice_(padded, offset, limits, windows.stride)
        inside = valid[tuple(map(slice, offset, limits, windows.stride))]
        if best is None or choice is None:
            best, choice = value, hlo.constant(0, hlo.tensor(windows.count, i32))
            reached = inside.copy()
            continue
        (keep,) = inline(select, [best, value])
        keep = _known(keep, always=~inside, never=inside & ~reached)
        best = hlo.select(keep, best, value)
        choice = hlo.select(keep, choice, hlo.constant_like(choice, i))
        reached |= inside
    if choice is None or not reached.all():
        refuse(op, "a window lies wholly in the padding; nothing to select")
    return choice


def _known(keep: ir.Value, *, always: np.ndarray, never: np.ndarray) -> ir.Value:
    """`keep` where padding does not decide it."""
    if always.any():
        keep = hlo.or_(keep, constants.make(always, keep.type))
    if never.any():
        keep = hlo.and_(keep, constants.make(~never, keep.type))
    return keep


def _place(
    windows: Windows, part: ir.Value, fill: ir.Value, offset: Sequence[int]
) -> ir.Value:
    """`part` at its places in the padded operand, `fill` between them."""
    ends = zip(windows.padded, windows.limits(offset), strict=True)
    high = [n - end for n, end in ends]
    interior = [s - 1 for s in windows.stride]
    return pad_any(part, fill, offset, high, interior)


# --- convolution ---


def crop(op: ir.Operation) -> Values | None:
    """Without elements that no window covers, where there is one window along a dim.

    IREE drops such a dim, stride and all, and then takes the kernel to be as long as
    the input ("inferred input/output operand #1 has shape's dimension ..."). None where
    no dim has one place and more input than that.
    """
    how = Convolution.of(op)
    x, kernel = op.operands
    padding, strides = list(how.padding), list(how.strides)
    for i, spare in enumerate(_spare(op, how)):
        if spare:
            low, high = padding[i]
            padding[i], strides[i] = (low, high - spare), 1
    if tuple(strides) == how.strides:
        return None
    how = replace(how, strides=tuple(strides), padding=tuple(padding))
    return [convolution(x, kernel, how, hlo.element_type(op.result))]


def _spare(op: ir.Operation, how: Convolution) -> list[int]:
    """Per spatial dim with one place: what lies behind the window, padding included."""
    x, kernel = (hlo.shape_of(v) for v in op.operands)
    found = []
    for i, d in enumerate(how.dims.output[2]):
        extent = dilated(x[how.dims.input[2][i]], how.lhs_dilation[i])
        window = dilated(kernel[how.dims.kernel[2][i]], how.rhs_dilation[i])
        one = hlo.shape_of(op.result)[d] == 1 and how.strides[i] > 1
        found.append(extent + sum(how.padding[i]) - window if one else 0)
    return found
