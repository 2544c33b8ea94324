"""Halo exchange: members give their neighbours what these need at their borders.

Along a window factor (`factors.Reach`) a part of the result needs an interval of the
operand, and each member holds a part of it. What a member needs and does not hold
travels as messages between pairs, collected into rounds in which nobody sends or
receives twice: a round is one permute of a buffer as wide as its widest message.
The halo of a convolution takes two rounds of a few elements; a reversal of equal
parts one round; a halo wider than a part more. Where rounds would move more than
gathering the dimension does, pcp-insert-reshards has it gathered: of an operand held
whole a member takes what it needs.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod

from pcp.dialect import collectives, hlo
from pcp.dialect.bindings import ir
from pcp.layout import Axes, Layout
from pcp.mesh import Mesh
from pcp.passes.sharding.factors import Assignment, FactorRule, Reach, Span

Value = ir.Value
Spans = tuple[Span, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class HaloRound:
    """Messages from member to member of a group, at most `width` elements each."""

    width: int
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Exchange:
    """What each member of a group holds and needs of one dimension, in order."""

    held: Spans
    needed: Spans

    @classmethod
    def of(
        cls, reach: Reach, factor_size: int, axes: Axes, mesh: Mesh, held: Axes
    ) -> "Exchange":
        """For a factor of that size cut along `axes`, the operand along `held`.

        That is as well, or not at all: then everyone has what it needs.
        """
        ranges = [range(mesh.axes[axis]) for axis in axes]
        places = [dict(zip(axes, place, strict=True)) for place in product(*ranges)]
        parts = [_span(mesh, factor_size, axes, place) for place in places]
        return cls(
            tuple(_span(mesh, reach.size, held, place) for place in places),
            tuple(map(reach.needed, parts)),
        )

    @cached_property
    def rounds(self) -> tuple[HaloRound, ...]:
        """The permutes, empty where everyone holds what it needs."""
        return _rounds(self.held, self.needed)

    @property
    def width(self) -> int:
        """Elements along the dimension that a member sends."""
        return sum(one.width for one in self.rounds)

    @property
    def is_narrow(self) -> bool:
        """Whether it moves at most half of what gathering the dimension does."""
        widest = max(stop - start for start, stop in self.held)
        return 2 * self.width <= (len(self.held) - 1) * widest


def _span(mesh: Mesh, n: int, axes: Axes, place: dict[str, int]) -> Span:
    offset, size = mesh.part(n, axes, place)
    return offset, offset + size


def overlap(a: Span, b: Span) -> Span:
    """What two intervals share; (0, 0) for nothing."""
    start, stop = max(a[0], b[0]), min(a[1], b[1])
    return (start, stop) if start < stop else (0, 0)


@lru_cache(maxsize=4096)
def _rounds(held: Spans, needed: Spans) -> tuple[HaloRound, ...]:
    """Every message in the first round that has room, the widest messages first."""
    count = len(held)
    messages = [
        (-(stop - start), (target - source) % count, source, target)
        for target, wanted in enumerate(needed)
        if overlap(held[target], wanted) != wanted
        for source, own in enumerate(held)
        for start, stop in [overlap(own, wanted)]
        if start < stop and source != target
    ]
    widths: list[int] = []
    pairs: list[list[tuple[int, int]]] = []
    for negative, _, source, target in sorted(messages):
        for one in pairs:
            if all(source != s and target != t for s, t in one):
                one.append((source, target))
                break
        else:
            widths.append(-negative)
            pairs.append([(source, target)])
    return tuple(
        HaloRound(width, tuple(sorted(one)))
        for width, one in zip(widths, pairs, strict=True)
    )


# --- in the program of one member ---


@dataclass(frozen=True)
class Border:
    """A member's view of an exchange along dimension `dim` of its operand."""

    exchange: Exchange
    dim: int
    axes: Axes
    mesh: Mesh
    place: dict[str, int]

    @property
    def me(self) -> int:
        """The member's number in its group."""
        index = 0
        for axis in self.axes:
            index = index * self.mesh.axes[axis] + self.place[axis]
        return index

    @property
    def needed(self) -> Span:
        """The interval of the whole operand that the member needs."""
        return self.exchange.needed[self.me]

    def fetch(self, value: Value) -> Value:
        """The member's part of the operand becomes the interval that it needs.

        Where it needs nothing, and has only sent what others need, a zero.
        """
        own = self.exchange.held[self.me]
        pieces = {self.me: self._cut_held(value, overlap(own, self.needed))}
        for one in self.exchange.rounds:
            got = self._permuted(value, one)
            for source in (s for s, target in one.pairs if target == self.me):
                start, stop = overlap(self.exchange.held[source], self.needed)
                pieces[source] = _cut(got, self.dim, (0, stop - start))
        found = [piece for _, piece in sorted(pieces.items()) if piece is not None]
        if not found:
            return self._zeros(value, 1)
        return found[0] if len(found) == 1 else hlo.concatenate(found, self.dim)

    def _zeros(self, value: Value, width: int) -> Value:
        """As wide as that along the dimension, and as `value` in the others."""
        shape = list(hlo.shape_of(value))
        shape[self.dim] = width
        return hlo.zeros(hlo.tensor(shape, hlo.element_type(value)))

    def _cut_held(self, value: Value, span: Span) -> Value | None:
        """Part of what the member holds, by where it lies in the whole operand."""
        start = self.exchange.held[self.me][0]
        return _cut(value, self.dim, (span[0] - start, span[1] - start))

    def _permuted(self, value: Value, one: HaloRound) -> Value:
        """What the member is sent in a round; zeros for one that is sent nothing."""
        return collectives.permute(
            self._message(value, one),
            mesh=self.mesh.name,
            axes=self.axes,
            pairs=one.pairs,
            ordered=ir.UnitAttr.get(),
        )

    def _message(self, value: Value, one: HaloRound) -> Value:
        """What the member sends in a round, filled up to the round's width."""
        for target in (t for source, t in one.pairs if source == self.me):
            own = self.exchange.held[self.me]
            piece = self._cut_held(value, overlap(own, self.exchange.needed[target]))
            assert piece is not None, "a message holds what its target needs"
            missing = [0] * len(hlo.shape_of(piece))
            missing[self.dim] = one.width - hlo.shape_of(piece)[self.dim]
            if not any(missing):
                return piece
            zero = hlo.zeros(hlo.tensor((), hlo.element_type(value)))
            return hlo.pad(piece, zero, [0] * len(missing), missing)
        return self._zeros(value, one.width)


def _cut(value: Value, dim: int, span: Span) -> Value | None:
    """An interval along `dim`; None for an empty one."""
    shape = hlo.shape_of(value)
    if span[0] >= span[1]:
        return None
    if span == (0, shape[dim]):
        return value
    start, limit = [0] * len(shape), list(shape)
    start[dim], limit[dim] = span
    return hlo.slice_(value, start, limit)


def halo_cost(
    rule: FactorRule,
    operand: int,
    way: Assignment,
    held: Layout,
    shape: Shape,
    mesh: Mesh,
) -> tuple[float, int]:
    """Elements that a member sends of an operand held so, and in how many messages."""
    elements, messages = 0.0, 0
    for reach in rule.reaches:
        axes = way.get(reach.factor, ())
        if reach.operand == operand and axes:
            cut, size = held.dims[reach.dim], rule.sizes[reach.factor]
            exchange = Exchange.of(reach, size, axes, mesh, cut)
            others = Layout((*held.dims[: reach.dim], (), *held.dims[reach.dim + 1 :]))
            across = prod(shape) / shape[reach.dim] / mesh.count(others.axes)
            elements += exchange.width * across
            messages += len(exchange.rounds)
    return elements, messages
