"""scatter: by what the body does with the old element and the update.

A window that does not fit is dropped whole, as XLA does; positions have no
cotangent. A scatter of several operands is one scatter for each, where its body
keeps them apart.
"""

from collections.abc import Sequence

from pcp.autodiff.core.activity import propagate
from pcp.autodiff.core.bodies import combiner, lift, returns_update
from pcp.autodiff.core.cotangents import Cotangents
from pcp.autodiff.core.kinds import Site, Vjp
from pcp.autodiff.core.values import wide
from pcp.autodiff.rules.places import Place
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import sort

Value = ir.Value


def _scatter(at: Site) -> list[Value | None]:
    count = len(at.op.results)
    if any(at.wanted[2 * count + 1 :]):
        raise at.refuse(
            "its body captures a value that depends on what is differentiated; "
            "combine with it before or after the scatter"
        )
    more = (None,) * (len(at.inputs) - 2 * count - 1)
    if count == 1:
        place = Place(at)
        name = "set" if returns_update(at.op) else combiner(at.op) or ""
        if name in _BODIES:
            return [*_BODIES[name](at, place), *more]
    if not Place(at).unique:
        raise at.refuse(
            "a body that does not add, subtract, multiply, take the maximum or "
            "minimum, or return the update has a derivative rule only with "
            "unique_indices = true"
        )
    return [*_any_body(at, count), *more]


def _replace(old: Value, new: Value) -> Value:
    return new


def _set(at: Site, place: Place) -> list[Value | None]:
    """What was overwritten gets nothing; of updates to one place the last written
    does. Which that was the specification leaves open: it is found by writing
    the updates' own numbers to the same places."""
    if place.unique:
        onto = None
        if at.wanted[0]:
            onto = place.write(at.g, hlo.zeros(at[2].type), _replace, True)
        return [onto, None, place.kept(place.read(at.g)) if at.wanted[2] else None]
    numbers = _numbers(at[2], first=1)
    untouched = hlo.zeros(hlo.like(at[0], element=hlo.element_type(numbers)))
    winners = place.write(untouched, numbers, _replace, False)
    zero = hlo.zeros(at.g.type)
    onto = hlo.select(hlo.compare("EQ", winners, untouched), at.g, zero)
    if not at.wanted[2]:
        return [onto, None, None]
    won = hlo.compare("EQ", place.read(winners), numbers)
    updates = hlo.select(won, place.read(at.g), hlo.zeros(at[2].type))
    return [onto if at.wanted[0] else None, None, place.kept(updates)]


def _numbers(x: Value, first: int = 0) -> Value:
    """first, first + 1, ... in the shape of x."""
    i32 = ir.IntegerType.get_signless(32)
    count = hlo.iota(hlo.tensor((hlo.size(x),), i32), 0)
    if first:
        count = hlo.add(count, hlo.constant_like(count, first))
    return hlo.reshape(count, hlo.shape_of(x))


def _add(at: Site, place: Place) -> list[Value | None]:
    return [at.g, None, place.kept(place.read(at.g)) if at.wanted[2] else None]


def _subtract(at: Site, place: Place) -> list[Value | None]:
    onto, _, updates = _add(at, place)
    return [onto, None, None if updates is None else hlo.negate(updates)]


def _multiply(at: Site, place: Place) -> list[Value | None]:
    """g times all other factors of the same place."""
    onto = updates = None
    if at.wanted[0]:
        onto = place.write(at.g, at[2], hlo.multiply, place.unique)
    if at.wanted[2]:
        updates = place.read(hlo.multiply(at.g, at[0]))
        if not place.unique:
            updates = hlo.multiply(updates, _others(at, place))
        updates = place.kept(updates)
    return [onto, None, updates]


def _others(at: Site, place: Place) -> Value:
    """For each update the product of all others to the same place.

    Sorted by place, it is what comes before times what comes after. Nothing is
    divided, so zeros are exact in every order of derivative.
    """
    u, size = at[2], hlo.size(at[2])
    keys = place.read(_numbers(at[0]))
    if not place.fits:  # what was dropped is no factor of anything
        keys = hlo.select(place.landed(), keys, hlo.constant_like(keys, -1))

    def earlier(a: Value, b: Value, *_: Value) -> Value:
        return hlo.compare("LT", a, b)

    columns = [hlo.reshape(x, [size]) for x in (keys, _numbers(u), u)]
    keys, numbers, factors = sort(columns, 0, earlier)
    around = hlo.multiply(_before(keys, factors, +1), _before(keys, factors, -1))
    _, around = sort([numbers, around], 0, earlier)
    return hlo.reshape(around, hlo.shape_of(u))


def _before(keys: Value, factors: Value, direction: int) -> Value:
    """The product of all earlier (later for -1) factors with the same key."""
    size = hlo.size(keys)

    def shifted(x: Value, by: int, fill: float) -> Value:
        edge = hlo.scalar(fill, hlo.element_type(x))
        return hlo.pad(x, edge, [by * direction], [-by * direction])

    def same(by: int) -> Value:
        return hlo.compare("EQ", shifted(keys, by, -2), keys)

    total, reach = factors, 1
    while reach < size:
        more = hlo.multiply(shifted(total, reach, 1.0), total)
        total = hlo.select(same(reach), more, total)
        reach *= 2
    total = shifted(total, 1, 1.0)
    return hlo.select(same(1), total, hlo.constant_like(total, 1.0))


def _extremum(at: Site, place: Place) -> list[Value | None]:
    """The winners of each place, the old element among them, share g equally."""
    element = hlo.element_type(at.g)
    hit = hlo.compare("EQ", at[2], place.read(at.y))
    if not place.fits:
        hit = hlo.and_(hit, place.landed())
    keep = hlo.compare("EQ", at[0], at.y)
    count = place.write(
        hlo.convert(keep, wide(element)),
        hlo.convert(hit, wide(element)),
        hlo.add,
        place.unique,
    )
    share = hlo.divide(hlo.convert(at.g, wide(element)), count)
    share = hlo.convert(share, element)
    return [
        hlo.select(keep, share, hlo.zeros(share.type)),
        None,
        hlo.select(hit, place.read(share), hlo.zeros(at[2].type)),
    ]


_BODIES = {
    "set": _set,
    "add": _add,
    "subtract": _subtract,
    "multiply": _multiply,
    "maximum": _extremum,
    "minimum": _extremum,
}


# --- any body ---


def _any_body(at: Site, count: int) -> list[Value | None]:
    """With one update for each place the body is elementwise: redo it and transpose.

    Elements that no update reaches keep their cotangent.
    """
    from pcp.autodiff.core.reverse import pull_back  # rules are below the walk

    place = Place(at)
    olds = [place.read(x) for x in at.inputs[:count]]
    news = list(at.inputs[count + 1 : 2 * count + 1])
    block = at.op.regions[0].blocks[0]
    lifted = lift(block, [*olds, *news], hlo.shape_of(news[0]))
    if lifted is None:
        raise at.refuse("its body holds an op that is not elementwise")
    results, made = lifted
    active = {x: "" for x in (*olds, *news) if hlo.is_differentiable(x)}
    cotangents = Cotangents()
    for result, g in zip(results, at.cotangents, strict=True):
        if g is not None:
            cotangents.add(result, place.kept(place.read(g)))
    pull_back(made, cotangents, propagate(made, active))
    onto = [
        _put_back(place, g, cotangents.take(old))
        for g, old in zip(at.cotangents, olds, strict=True)
    ]
    updates = [cotangents.take(x) for x in news]
    return [*onto, None, *(None if u is None else place.kept(u) for u in updates)]


def _put_back(place: Place, g: Value | None, inside: Value | None) -> Value | None:
    """g with what the body made of it where an update was written."""
    if g is None and inside is None:
        return None
    if inside is None:
        inside = hlo.zeros(hlo.like(place.update_type, element=hlo.element_type(g)))
    if g is None:
        shape = place.operand_shape
        g = hlo.zeros(hlo.tensor(shape, hlo.element_type(inside)))
    return place.write(g, inside, _replace, True)


# --- several operands ---


def _apart(op: ir.Operation) -> Sequence[Value] | None:
    """One scatter for each operand, if the body does not mix them."""
    count = len(op.results)
    if count == 1:
        return None
    block = op.regions[0].blocks[0]
    *_, end = block.operations
    arguments = list(block.arguments)
    for i, returned in enumerate(end.operands):
        if _reads(returned, block) - {arguments[i], arguments[count + i]}:
            return None
    return [_single(op, i, count) for i in range(count)]


def _reads(value: Value, block: ir.Block) -> set[Value]:
    """The arguments of the body that a value of it depends on."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return {value} if owner == block else set()
    if owner.operation.block != block:
        return set()
    found: set[Value] = set()
    for operand in owner.operands:
        found |= _reads(operand, block)
    return found


def _single(op: ir.Operation, i: int, count: int) -> Value:
    """The scatter of operand i alone, its body copied."""
    copy = op.clone()
    block = copy.regions[0].blocks[0]
    *_, end = [inner.operation for inner in block.operations]
    with ir.InsertionPoint(end), end.location:
        hlo.op("return", [end.operands[i]], [])
    end.erase()
    for k in reversed(range(2 * count)):
        if k not in (i, count + i):
            _drop(block, k)
    single = hlo.op(
        "scatter",
        [op.operands[i], op.operands[count], op.operands[count + 1 + i]],
        [op.results[i].type],
        regions=1,
        **{name: op.attributes[name] for name in op.attributes},
    )
    block.append_to(single.regions[0])
    copy.erase()
    return single.result


def _drop(block: ir.Block, index: int) -> None:
    """Remove an argument and the ops of the body that read it: nobody returns them."""
    argument = block.arguments[index]
    for inner in reversed([o.operation for o in block.operations]):
        if argument in _arguments_behind(inner, block):
            inner.erase()
    block.erase_argument(index)


def _arguments_behind(op: ir.Operation, block: ir.Block) -> set[Value]:
    found: set[Value] = set()
    for operand in op.operands:
        found |= _reads(operand, block)
    return found


RULES = {"scatter": Vjp(_scatter, expand=_apart)}
