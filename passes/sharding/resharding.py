"""From one layout of a tensor to another: which collectives, and what they cost.

In this order, each where it applies: partial sums that the new layout cuts are
reduce-scattered; a mere exchange of parts is one permute; new axes that the old
layout does not use are sliced off, which is free; other partial sums are
all-reduced; then dimension by dimension the axes that have to go are moved to where
they are wanted (all-to-all) or gathered. A value that is to be partial sums and
is none is kept by one member of each group.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from pcp.layout import Axes, Layout
from pcp.mesh import Mesh


@dataclass(frozen=True)
class ReshardStep:
    """One collective, or a slice, and the layout after it.

    `kind`: reduce_scatter, all_reduce, all_gather, all_to_all, permute, slice or
    keep: the first member along the axes keeps the value, the others have zeros.
    """

    kind: str
    axes: Axes
    after: Layout
    dim: int = 0
    to: int = 0
    pairs: tuple[tuple[int, int], ...] = ()


def steps(
    old: Layout, new: Layout, shape: Sequence[int], mesh: Mesh
) -> list[ReshardStep]:
    """The way from `old` to `new` for a tensor of this global shape."""
    found: list[ReshardStep] = []
    layout = old
    for move in MOVES:
        for step in move(layout, new, tuple(shape), mesh):
            found.append(step)
            layout = step.after
    assert layout == new, (old, new, layout)
    return found


def bytes_moved(step: ReshardStep, before: Layout, size: int, mesh: Mesh) -> float:
    """Bytes that a member sends in one step; `size` is the tensor's, in bytes.

    Of a ring: 2(k-1)/k of what is reduced, (k-1)/k of what is scattered or gathered.
    """
    if step.kind in ("slice", "keep"):
        return 0.0
    local = size / mesh.count(before.axes)
    k = mesh.count(step.axes)
    match step.kind:
        case "all_reduce":
            return 2 * (k - 1) / k * local
        case "all_gather":
            return (k - 1) * local
        case "permute":
            return local
    return (k - 1) / k * local


def cost(
    old: Layout, new: Layout, shape: Sequence[int], width: int, mesh: Mesh
) -> float:
    """Bytes that a member sends to get from `old` to `new`; `width` of an element."""
    if old == new:
        return 0.0
    total, layout = 0.0, old
    for step in steps(old, new, shape, mesh):
        total += bytes_moved(step, layout, prod(shape) * width, mesh)
        layout = step.after
    return total


# --- the moves ---

Shape = tuple[int, ...]


def _with_dim(layout: Layout, d: int, axes: Axes, unreduced: Axes | None = None):
    dims = (*layout.dims[:d], axes, *layout.dims[d + 1 :])
    return Layout(dims, layout.unreduced if unreduced is None else unreduced)


def _reduce_scatters(
    layout: Layout, new: Layout, shape: Shape, mesh: Mesh
) -> Iterator[ReshardStep]:
    """Partial sums over an axis that the new layout appends to a dimension."""
    changed = True
    while changed:
        changed = False
        for d, wanted in enumerate(new.dims):
            own = layout.dims[d]
            nxt = wanted[len(own)] if len(wanted) > len(own) else None
            if nxt in layout.unreduced and wanted[: len(own)] == own:
                rest = tuple(a for a in layout.unreduced if a != nxt)
                layout = _with_dim(layout, d, (*own, nxt), rest)
                yield ReshardStep("reduce_scatter", (nxt,), layout, d)
                changed = True


def _all_reduces(
    layout: Layout, new: Layout, shape: Shape, mesh: Mesh
) -> Iterator[ReshardStep]:
    """What is still partial and must not be."""
    gone = tuple(a for a in layout.unreduced if a not in new.unreduced)
    if gone:
        rest = tuple(a for a in layout.unreduced if a in new.unreduced)
        yield ReshardStep("all_reduce", gone, Layout(layout.dims, rest))


def _keeps(
    layout: Layout, new: Layout, shape: Shape, mesh: Mesh
) -> Iterator[ReshardStep]:
    """A value as partial sums: one member's, and zeros."""
    if layout.unreduced != new.unreduced:
        more = tuple(a for a in new.unreduced if a not in layout.unreduced)
        yield ReshardStep("keep", more, Layout(layout.dims, new.unreduced))


def _slices(
    layout: Layout, new: Layout, shape: Shape, mesh: Mesh
) -> Iterator[ReshardStep]:
    """Axes that can be appended at once, since nothing else uses them."""
    for d, wanted in enumerate(new.dims):
        own = layout.dims[d]
        busy = {*layout.axes, *layout.unreduced}
        more: Axes = ()
        if wanted[: len(own)] == own:
            for axis in wanted[len(own) :]:
                if axis in busy:
                    break
                more += (axis,)
        if more:
            layout = _with_dim(layout, d, (*own, *more))
            yield ReshardStep("slice", more, layout, d)


def _permute(
    layout: Layout, new: Layout, shape: Shape, mesh: Mesh
) -> Iterator[ReshardStep]:
    """The same parts on other members: one message each."""
    if layout.unreduced or new.unreduced or layout.dims == new.dims:
        return
    for n, a, b in zip(shape, layout.dims, new.dims, strict=True):
        if mesh.parts(n, a) != mesh.parts(n, b) or not mesh.is_even(n, a):
            return
    axes = _changed_axes(layout, new, mesh)
    pairs = exchange(layout, new, shape, mesh, axes)
    yield ReshardStep("permute", axes, new, pairs=pairs)


def _changed_axes(layout: Layout, new: Layout, mesh: Mesh) -> Axes:
    """The axes whose place differs, in the mesh's order."""

    def where(some: Layout) -> dict[str, tuple[int, int]]:
        return {a: (d, i) for d, dim in enumerate(some.dims) for i, a in enumerate(dim)}

    old, then = where(layout), where(new)
    return tuple(a for a in mesh.axes if old.get(a) != then.get(a))


def exchange(
    old: Layout, new: Layout, shape: Shape, mesh: Mesh, axes: Axes
) -> tuple[tuple[int, int], ...]:
    """(source, target) in a group along `axes`: who has what the target needs.

    Each member sends to one: those that hold the same part serve in turn.
    """
    fixed = {axis: 0 for axis in mesh.axes if axis not in axes}
    group = [m for m in mesh.members if all(m[a] == 0 for a in fixed)]
    holders: dict[tuple, list[int]] = {}
    for i, place in enumerate(group):
        holders.setdefault(_parts(old, shape, mesh, place), []).append(i)
    return tuple(
        (holders[_parts(new, shape, mesh, place)].pop(0), i)
        for i, place in enumerate(group)
    )


def _parts(layout: Layout, shape: Shape, mesh: Mesh, place: dict[str, int]) -> tuple:
    return tuple((s.start, s.stop) for s in layout.slices(shape, mesh, place))


def _reorders(
    layout: Layout, new: Layout, shape: Shape, mesh: Mesh
) -> Iterator[ReshardStep]:
    """Inner axes that stay go in front of those that will be gathered: one permute."""
    if layout.unreduced:
        return
    dims = list(layout.dims)
    for d, (own, wanted) in enumerate(zip(layout.dims, new.dims, strict=True)):
        stays = set(wanted) <= set(own) and wanted != own[: len(wanted)]
        if stays and mesh.is_even(shape[d], own):
            dims[d] = (*wanted, *(axis for axis in own if axis not in wanted))
    target = Layout(tuple(dims))
    if target.dims != layout.dims:
        axes = _changed_axes(layout, target, mesh)
        pairs = exchange(layout, target, shape, mesh, axes)
        yield ReshardStep("permute", axes, target, pairs=pairs)


def _moves(
    layout: Layout, new: Layout, shape: Shape, mesh: Mesh
) -> Iterator[ReshardStep]:
    """Pop axes that must go, one by one, and append those that must come."""
    while layout.dims != new.dims:
        step = (
            _append(layout, new)
            or _exchange_dims(layout, new, shape, mesh)
            or _gather(layout, new)
        )
        layout = step.after
        yield step


def _append(layout: Layout, new: Layout) -> ReshardStep | None:
    for d, wanted in enumerate(new.dims):
        own = layout.dims[d]
        if wanted[: len(own)] == own and len(wanted) > len(own):
            axis = wanted[len(own)]
            if axis not in layout.axes:
                return ReshardStep(
                    "slice", (axis,), _with_dim(layout, d, (*own, axis)), d
                )
    return None


def _surplus(layout: Layout, new: Layout) -> Iterator[int]:
    """Dimensions whose last axis has to go."""
    for d, (own, wanted) in enumerate(zip(layout.dims, new.dims, strict=True)):
        if own and wanted[: len(own)] != own:
            yield d


def _exchange_dims(
    layout: Layout, new: Layout, shape: Shape, mesh: Mesh
) -> ReshardStep | None:
    """A dimension's last axis, where another wants it next and parts are equal."""
    for d in _surplus(layout, new):
        axis = layout.dims[d][-1]
        for e, wanted in enumerate(new.dims):
            own = layout.dims[e]
            if e == d or wanted[: len(own) + 1] != (*own, axis):
                continue
            shorter = _with_dim(layout, d, layout.dims[d][:-1])
            after = _with_dim(shorter, e, (*own, axis))
            even = mesh.is_even(shape[d], layout.dims[d]) and mesh.is_even(
                shape[e], (*own, axis)
            )
            if even:
                return ReshardStep("all_to_all", (axis,), after, d, e)
    return None


def _gather(layout: Layout, new: Layout) -> ReshardStep:
    d = next(_surplus(layout, new))
    own = layout.dims[d]
    return ReshardStep("all_gather", own[-1:], _with_dim(layout, d, own[:-1]), d)


MOVES = (
    _reduce_scatters,
    _permute,
    _slices,
    _all_reduces,
    _permute,
    _reorders,
    _moves,
    _keeps,
)
