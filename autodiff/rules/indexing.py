"""Data movement with positions known at run time: gather, scatter, dynamic slices.

Positions are integers and have no cotangent. A gather moves an out-of-range
window to where it fits, a scatter drops it; a transpose must do what its primal
did, so a gather's clamps its indices first.
"""

from pcp.autodiff.bodies import combiner, returns_update
from pcp.autodiff.kinds import Linear, Site, Vjp
from pcp.autodiff.rules.values import constant_array
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import (
    Windows,
    clamp_indices,
    gather,
    index_limits,
    scatter,
    sort,
)

Value = ir.Value


def _gather(at: Site, g: Value) -> Value:
    """Scatter-add of g onto zeros, at the positions that were read."""
    operand, indices = at[0], at[1]
    windows = Windows.of_gather(at.attribute("dimension_numbers"))
    sizes, shape = at.ints("slice_sizes"), hlo.shape_of(operand)
    if not _in_range(indices, windows, shape, sizes):
        indices = clamp_indices(indices, windows, shape, sizes)
    return scatter(
        hlo.zeros(operand.type),
        indices,
        g,
        windows,
        hlo.add,
        is_sorted=_flag(at, "indices_are_sorted"),
    )


def _in_range(
    indices: Value, windows: Windows, shape: tuple[int, ...], sizes: list[int]
) -> bool:
    """Whether constant indices all lie where the whole window fits."""
    found = constant_array(indices)
    if found is None:
        return False
    if windows.index_vector < found.ndim:
        parts = [
            found.take(k, windows.index_vector) for k in range(len(windows.index_map))
        ]
    else:
        parts = [found]
    limits = index_limits(windows, shape, sizes)
    return all(
        ((part >= 0) & (part <= limit)).all()
        for part, limit in zip(parts, limits, strict=True)
    )


def _dynamic_slice(at: Site, g: Value) -> Value:
    """Both ops clamp their starts alike, so this is exact out of bounds too."""
    return hlo.dynamic_update_slice(hlo.zeros(at[0].type), g, list(at.op.operands)[1:])


def _updated(at: Site, g: Value) -> Value:
    """What was overwritten gets nothing."""
    return hlo.dynamic_update_slice(g, hlo.zeros(at[1].type), list(at.op.operands)[2:])


def _update(at: Site, g: Value) -> Value:
    return hlo.dynamic_slice(g, list(at.op.operands)[2:], hlo.shape_of(at[1]))


# --- scatter ---


def _scatter(at: Site) -> list[Value | None]:
    """By what the body does with the old element and the update."""
    if len(at.op.results) != 1:
        raise at.refuse(
            "several operands in one scatter have no derivative rule; write one "
            "scatter for each"
        )
    if len(at.inputs) > 3:
        raise at.refuse("its body captures a value, which has no derivative rule")
    place = _Place(at)
    if returns_update(at.op):
        return _scatter_set(at, place)
    rule = _COMBINERS.get(combiner(at.op) or "")
    if rule is None:
        raise at.refuse(
            "only bodies that add, subtract, multiply, take the maximum or minimum, "
            "or return the update have a derivative rule"
        )
    return rule(at, place)


class _Place:
    """Where a scatter writes: its windows, clamped, and which were dropped.

    A window that does not fit is dropped whole, as XLA does.
    """

    def __init__(self, at: Site) -> None:
        self.windows = Windows.of_scatter(at.attribute("scatter_dimension_numbers"))
        self.operand_shape = hlo.shape_of(at[0])
        self.update_type = at[2].type
        self.raw = at[1]
        shape = hlo.shape_of(at[2])
        self.sizes = self.windows.window_sizes(self.operand_shape, shape)
        self.is_sorted = _flag(at, "indices_are_sorted")
        self.unique = _flag(at, "unique_indices")
        self.fits = _in_range(self.raw, self.windows, self.operand_shape, self.sizes)
        self.indices = (
            self.raw
            if self.fits
            else clamp_indices(self.raw, self.windows, self.operand_shape, self.sizes)
        )

    def read(self, x: Value) -> Value:
        """x where each update was written."""
        return gather(
            x, self.indices, self.windows, self.sizes, is_sorted=self.is_sorted
        )

    def write(self, onto: Value, updates: Value, combine, unique: bool) -> Value:
        """Another scatter to the same positions."""
        return scatter(
            onto,
            self.raw,
            updates,
            self.windows,
            combine,
            is_sorted=self.is_sorted,
            unique=unique,
        )

    def kept(self, x: Value) -> Value:
        """x, or zero in updates that were dropped."""
        if self.fits:
            return x
        return hlo.select(self.landed(), x, hlo.zeros(x.type))

    def landed(self) -> Value:
        """Which updates were written, in the updates' shape."""
        inside = hlo.compare("EQ", self.raw, self.indices)
        i1 = hlo.element_type(inside)
        vector = self.windows.index_vector
        if vector < len(hlo.shape_of(inside)):
            inside = hlo.reduce(inside, hlo.scalar(True, i1), [vector], hlo.and_)
        shape = hlo.shape_of(self.update_type)
        batch = [d for d in range(len(shape)) if d not in set(self.windows.offset)]
        return hlo.broadcast_in_dim(inside, shape, batch)


def _flag(at: Site, name: str) -> bool:
    found = at.attribute(name)
    return found is not None and ir.BoolAttr(found).value


def _replace(old: Value, new: Value) -> Value:
    return new


def _scatter_set(at: Site, place: _Place) -> list[Value | None]:
    """What was overwritten gets nothing; of updates to one place the last written
    does. Which that was the specification leaves open: it is found by writing
    the updates' own numbers to the same places."""
    if place.unique:
        onto = None
        if at.wanted[0]:
            onto = place.write(at.g, hlo.zeros(at[2].type), _replace, True)
        return [onto, None, place.kept(place.read(at.g)) if at.wanted[2] else None]
    i32 = ir.IntegerType.get_signless(32)
    count = hlo.size(at[2])
    numbers = hlo.iota(hlo.tensor((count,), i32), 0)
    numbers = hlo.add(numbers, hlo.constant_like(numbers, 1))
    numbers = hlo.reshape(numbers, hlo.shape_of(at[2]))
    untouched = hlo.zeros(hlo.like(at[0], element=i32))
    winners = place.write(untouched, numbers, _replace, False)
    zero = hlo.zeros(at.g.type)
    onto = hlo.select(hlo.compare("EQ", winners, untouched), at.g, zero)
    if not at.wanted[2]:
        return [onto, None, None]
    won = hlo.compare("EQ", place.read(winners), numbers)
    updates = hlo.select(won, place.read(at.g), hlo.zeros(at[2].type))
    return [onto if at.wanted[0] else None, None, place.kept(updates)]


def _scatter_add(at: Site, place: _Place) -> list[Value | None]:
    return [at.g, None, place.kept(place.read(at.g)) if at.wanted[2] else None]


def _scatter_subtract(at: Site, place: _Place) -> list[Value | None]:
    onto, _, updates = _scatter_add(at, place)
    return [onto, None, None if updates is None else hlo.negate(updates)]


def _scatter_multiply(at: Site, place: _Place) -> list[Value | None]:
    """Products with one update for each place."""
    if not place.unique:
        raise at.refuse(
            "a scatter that multiplies has a derivative rule only with "
            "unique_indices = true"
        )
    onto = updates = None
    if at.wanted[0]:
        onto = place.write(at.g, at[2], hlo.multiply, True)
    if at.wanted[2]:
        updates = place.kept(place.read(hlo.multiply(at.g, at[0])))
    return [onto, None, updates]


def _scatter_extremum(at: Site, place: _Place) -> list[Value | None]:
    """The winners of each place, the old element among them, share g equally."""
    element = hlo.element_type(at.g)
    hit = hlo.compare("EQ", at[2], place.read(at.y))
    if not place.fits:
        hit = hlo.and_(hit, place.landed())
    keep = hlo.compare("EQ", at[0], at.y)
    count = place.write(
        hlo.convert(keep, element), hlo.convert(hit, element), hlo.add, place.unique
    )
    share = hlo.divide(at.g, count)
    return [
        hlo.select(keep, share, hlo.zeros(share.type)),
        None,
        hlo.select(hit, place.read(share), hlo.zeros(at[2].type)),
    ]


_COMBINERS = {
    "add": _scatter_add,
    "subtract": _scatter_subtract,
    "multiply": _scatter_multiply,
    "maximum": _scatter_extremum,
    "minimum": _scatter_extremum,
}


# --- sort ---


def _sort(at: Site) -> list[Value | None]:
    """Sort the cotangents back by where each element came from.

    The primal sorts a counter along, so that the permutation is the one used,
    also where the comparison calls two elements equal.
    """
    axis = at.int("dimension")
    came_from = _with_counter(at.op, axis)
    live = [i for i, g in enumerate(at.cotangents) if g is not None]

    def earlier(a: Value, b: Value, *_: Value) -> Value:
        return hlo.compare("LT", a, b)

    _, *back = sort(
        [came_from, *(at.cotangents[i] for i in live)], axis, earlier, is_stable=False
    )
    answer: list[Value | None] = [None] * len(at.inputs)
    for i, g in zip(live, back, strict=True):
        answer[i] = g
    return answer


def _with_counter(op: ir.Operation, axis: int) -> Value:
    """Replace the op by one that also sorts 0, 1, ... along `axis`; returns those."""
    i32 = ir.IntegerType.get_signless(32)
    with ir.InsertionPoint(op):
        counter = hlo.iota(hlo.like(op.operands[0], element=i32), axis)
        return _sorted_along(op, [counter])[-1]


def _sorted_along(op: ir.Operation, more: list[Value]) -> list[Value]:
    """Replace the op by one that moves `more` as it moves its operands.

    Emits at the insertion point; returns all results. The old op is left without
    users.
    """
    husk = op.clone()
    wider = hlo.op(
        "sort",
        [*op.operands, *more],
        [*(r.type for r in op.results), *(x.type for x in more)],
        regions=1,
        **{name: op.attributes[name] for name in op.attributes},
    )
    husk.regions[0].blocks[0].append_to(wider.regions[0])
    husk.erase()
    for x in more:
        for _ in range(2):
            scalar = hlo.tensor((), hlo.element_type(x))
            wider.regions[0].blocks[0].add_argument(scalar, op.location)
    for old, new in zip(op.results, wider.results, strict=False):
        old.replace_all_uses_with(new)
    return list(wider.results)


def _sort_forward(op: ir.Operation, tangents: dict[Value, Value]) -> None:
    """Tangents are sorted along with their operands, where the op stands."""
    moving = [i for i, x in enumerate(op.operands) if x in tangents]
    with ir.InsertionPoint(op):
        results = _sorted_along(op, [tangents[op.operands[i]] for i in moving])
    pushed = results[len(op.results) :]
    for i, tangent in zip(moving, pushed, strict=True):
        tangents[results[i]] = tangent


RULES = {
    "scatter": Vjp(_scatter),
    "sort": Vjp(_sort, _sort_forward),
    "gather": Linear(_gather, None),
    "dynamic_slice": Linear(_dynamic_slice),
    "dynamic_update_slice": Linear(_updated, _update),
}
