"""reduce: sums, extrema, argmax pairs, and any associative body (products).

An initial value must be an identity of the body (the specification lets it be
used any number of times). So it has a derivative only where that number does not
matter or is always one: in sums, maxima and minima. Elsewhere an active one is
refused.
"""

from math import prod

from pcp.autodiff.core.bodies import combiner, lift
from pcp.autodiff.core.cotangents import Cotangents, materialize
from pcp.autodiff.core.kinds import Site, Vjp
from pcp.autodiff.core.values import sum_all, wide
from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value


def _reduce(at: Site) -> list[Value | None]:
    count = len(at.op.results)
    name = combiner(at.op) if count == 1 else None
    more: list[Value | None] = [None] * (len(at.inputs) - count)
    if any(at.wanted[count:]) and (name not in _SINGLE or any(at.wanted[2:])):
        raise at.refuse(
            "its initial value (or a value its body captures) depends on what is "
            "differentiated; use the body's identity as initial value and combine "
            "with the other afterwards"
        )
    if name in _SINGLE:
        return [*_SINGLE[name](at), *more[1:]]
    if count == 2 and (picked := _index_of_pick(at)) is not None:
        return [_pick(at, *picked), None, *more]
    return [*_tree(at, count), *more]


# --- one operand, one op ---


def _spread(at: Site, value: Value) -> Value:
    """A value of the result's shape, repeated along the reduced dimensions."""
    shape = hlo.shape_of(at[0])
    reduced = set(at.ints("dimensions"))
    kept = [d for d in range(len(shape)) if d not in reduced]
    return hlo.broadcast_in_dim(value, shape, kept)


def _sum(at: Site) -> list[Value | None]:
    """The initial value is added once to every element of the result."""
    init = sum_all(at.g) if at.wanted[1] else None
    return [_spread(at, at.g) if at.wanted[0] else None, init]


def _extremum(at: Site) -> list[Value | None]:
    """Tied elements share g equally, the initial value among them if it is active.

    Using that value any number of times changes nothing, so its derivative exists.
    Where the extremum is NaN nothing equals it, and all get g/0 times zero, a NaN too.
    """
    narrow = hlo.element_type(at.g)
    element = wide(narrow)
    hit = hlo.compare("EQ", at[0], _spread(at, at.y))
    ties = hlo.reduce_sum(hlo.convert(hit, element), at.ints("dimensions"))
    init = hlo.splat(at[1], hlo.shape_of(at.y)) if at.wanted[1] else None
    kept = None if init is None else hlo.compare("EQ", init, at.y)
    if kept is not None:
        ties = hlo.add(ties, hlo.convert(kept, element))
    share = hlo.convert(hlo.divide(hlo.convert(at.g, element), ties), narrow)
    return [
        hlo.multiply(hlo.convert(hit, narrow), _spread(at, share)),
        None
        if kept is None
        else sum_all(hlo.multiply(hlo.convert(kept, narrow), share)),
    ]


_SINGLE = {"add": _sum, "maximum": _extremum, "minimum": _extremum}


# --- (value, index) pairs ---


def _index_of_pick(at: Site) -> tuple[Value, int] | None:
    """The index result and its dimension, if the body picks a pair by its value.

    That holds if both results are one of the two arguments each (select, maximum,
    minimum) and the second operand counts along the one reduced dimension.
    """
    dims = at.ints("dimensions")
    if len(dims) != 1 or at.cotangents[1] is not None:
        return None
    block = at.op.regions[0].blocks[0]
    left, right = list(block.arguments)[:2], list(block.arguments)[2:]
    *_, end = block.operations
    for returned, a, b in zip(end.operands, left, right, strict=True):
        if not _picks(returned, {a, b}):
            return None
    if _counted_dimension(at[1]) != dims[0]:
        return None
    return at.op.results[1], dims[0]


def _picks(value: Value, candidates: set[Value]) -> bool:
    """Whether a body's value is always one of `candidates`."""
    if value in candidates:
        return True
    op = value.owner
    if isinstance(op, ir.Block):
        return False
    match op.name:
        case "stablehlo.select":
            return all(_picks(x, candidates) for x in list(op.operands)[1:])
        case "stablehlo.maximum" | "stablehlo.minimum":
            return all(_picks(x, candidates) for x in op.operands)
    return False


def _counted_dimension(x: Value) -> int | None:
    """The dimension along which x is 0, 1, 2, ..., through broadcasts of an iota."""
    op = x.owner
    if isinstance(op, ir.Block):
        return None
    if op.name == "stablehlo.iota":
        return ir.IntegerAttr(op.attributes["iota_dimension"]).value
    if op.name == "stablehlo.broadcast_in_dim":
        inner = _counted_dimension(op.operands[0])
        dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
        return None if inner is None else dims[inner]
    return None


def _pick(at: Site, index: Value, dimension: int) -> Value:
    """g goes to the element that was picked, and to no tied one."""
    counter = hlo.iota(at[1].type, dimension)
    hit = hlo.compare("EQ", counter, _spread(at, index))
    share = _spread(at, at.cotangents[0])
    return hlo.select(hit, share, hlo.zeros(share.type))


# --- any associative body ---


def _tree(at: Site, count: int) -> list[Value | None]:
    """Redo the fold as a balanced tree of whole-tensor steps, then transpose it.

    O(n) work and memory for n elements; the padding up to a power of two are the
    initial values. Nothing is divided by an element, so that a product has its exact
    derivatives, of every order, with any number of zeros.
    """
    from pcp.autodiff.core.reverse import pull_back  # rules are below the walk

    shape = hlo.shape_of(at[0])
    dims = sorted(at.ints("dimensions"))
    kept = [d for d in range(len(shape)) if d not in set(dims)]
    length = prod(shape[d] for d in dims)
    order, rest = [*dims, *kept], [shape[d] for d in kept]
    if length == 0:
        return [None] * count
    size = 1 << (length - 1).bit_length()
    xs = []
    for x, init in zip(at.inputs[:count], at.inputs[count:], strict=False):
        flat = hlo.reshape(hlo.transpose(x, order), [length, *rest])
        more = [size - length, *[0] * len(rest)]
        xs.append(hlo.pad(flat, init, [0] * len(more), more) if more[0] else flat)
    levels = []
    block = at.op.regions[0].blocks[0]
    while size > 1:
        size //= 2
        sides = [[_part(x, i * size, size) for x in xs] for i in (0, 1)]
        lifted = lift(block, [*sides[0], *sides[1]], [size, *rest])
        if lifted is None:
            raise at.refuse("its body holds an op that is not elementwise")
        levels.append((sides, lifted))
        xs = lifted[0]
    gs = [None if g is None else hlo.reshape(g, [1, *rest]) for g in at.cotangents]
    for sides, (results, made) in reversed(levels):
        cotangents = Cotangents()
        flat = [*sides[0], *sides[1]]
        active = {x: "" for x in flat if hlo.is_differentiable(x)}
        for result, g in zip(results, gs, strict=True):
            cotangents.add(result, g)
        pull_back(made, cotangents, _propagated(made, active))
        halves = [cotangents.take(x) for x in flat]
        gs = [
            _joined(a, b, x)
            for a, b, x in zip(halves[:count], halves[count:], flat, strict=False)
        ]
    return [None if g is None else _restored(g, length, order, shape) for g in gs]


def _propagated(made: list[ir.Operation], active: dict[Value, str]):
    from pcp.autodiff.core.activity import propagate

    return propagate(made, active)


def _part(x: Value, start: int, size: int) -> Value:
    shape = hlo.shape_of(x)
    zeros = [0] * (len(shape) - 1)
    return hlo.slice_(x, [start, *zeros], [start + size, *shape[1:]])


def _joined(a: Value | None, b: Value | None, primal: Value) -> Value | None:
    if a is None and b is None:
        return None
    return hlo.concatenate([materialize(a, primal), materialize(b, primal)], 0)


def _restored(g: Value, length: int, order: list[int], shape: tuple[int, ...]) -> Value:
    unpadded = _part(g, 0, length) if hlo.shape_of(g)[0] != length else g
    moved = hlo.reshape(unpadded, [shape[d] for d in order])
    return hlo.transpose(moved, [order.index(d) for d in range(len(order))])


RULES = {"reduce": Vjp(_reduce)}
