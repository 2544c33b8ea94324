"""reduce: sums, extrema, argmax pairs, and any associative body (products).

An initial value must be an identity of the body (the specification lets it be
used any number of times), and counts once, as in all implementations: where it is
active, or no identity, its derivative is that of `body(init, fold of the elements)`.
"""

from dataclasses import dataclass
from math import prod

from pcp.autodiff.core.activity import propagate
from pcp.autodiff.core.bodies import combiner, lift
from pcp.autodiff.core.cotangents import Cotangents, materialize
from pcp.autodiff.core.kinds import Site, Vjp
from pcp.autodiff.core.values import sum_all, wide
from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value
STOP = "pcp.stop_gradient"


def _reduce(at: Site) -> list[Value | None]:
    count = len(at.op.results)
    name = combiner(at.op) if count == 1 else None
    captured: list[Value | None] = [None] * (len(at.inputs) - 2 * count)
    if any(at.wanted[2 * count :]):
        raise at.refuse(
            "a value that its body captures depends on what is differentiated; "
            "combine with it before or afterwards"
        )
    if name in _SINGLE:
        return [*_SINGLE[name](at), *captured]
    if count == 2 and not any(at.wanted[2:4]):
        if (picked := _index_of_pick(at)) is not None:
            return [_pick(at, *picked), None, None, None, *captured]
    return [*_tree(at, count), *captured]


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


@dataclass(frozen=True)
class _Step:
    """The body at a level: its operands, left then right, what it gave, its ops."""

    operands: list[Value]
    results: list[Value]
    ops: list[ir.Operation]

    @classmethod
    def of(cls, at: Site, left: list[Value], right: list[Value]) -> "_Step":
        block, shape = at.op.regions[0].blocks[0], hlo.shape_of(left[0])
        lifted = lift(block, [*left, *right], shape)
        if lifted is None:
            raise at.refuse("its body holds an op that is not elementwise")
        return cls([*left, *right], *lifted)

    def pull(self, gs: list[Value | None]) -> list[tuple[Value | None, Value | None]]:
        """Cotangents of each left and right operand, from those of the results."""
        from pcp.autodiff.core.reverse import pull_back  # rules are below the walk

        active = {x: "" for x in self.operands if hlo.is_differentiable(x)}
        cotangents = Cotangents()
        for result, g in zip(self.results, gs, strict=True):
            cotangents.add(result, g)
        pull_back(self.ops, cotangents, propagate(self.ops, active))
        found = [cotangents.take(x) for x in self.operands]
        return list(zip(found[: len(gs)], found[len(gs) :], strict=True))


def _tree(at: Site, count: int) -> list[Value | None]:
    """Redo the fold as a balanced tree of whole-tensor steps, then transpose it.

    O(n) work and memory for n elements. Neighbours are combined, as the specification
    has it: the body need not commute. Nothing is divided by an element, so that a
    product has its exact derivatives, of every order, with any number of zeros.
    """
    shape = hlo.shape_of(at[0])
    dims = sorted(at.ints("dimensions"))
    kept = [d for d in range(len(shape)) if d not in set(dims)]
    size, rest = prod(shape[d] for d in dims), [shape[d] for d in kept]
    if 0 in shape:  # the result is the initial value
        return [None] * count + [_total(g) for g in at.cotangents]
    order = [*dims, *kept]
    xs = [
        hlo.reshape(hlo.transpose(x, order), [size, *rest]) for x in at.inputs[:count]
    ]
    levels: list[_Step] = []
    while hlo.shape_of(xs[0])[0] > 1:
        levels.append(_Step.of(at, *([_side(x, i) for x in xs] for i in (0, 1))))
        odd = [_behind(x, size - size % 2) for x in xs]
        xs = [_lengthened(*each) for each in zip(levels[-1].results, odd, strict=True)]
        size = hlo.shape_of(xs[0])[0]
    inits = [hlo.splat(x, [1, *rest]) for x in at.inputs[count : 2 * count]]
    given = [None if g is None else hlo.reshape(g, [1, *rest]) for g in at.cotangents]
    found = _root(at, inits, xs, given)
    gs = [
        materialize(right, x) if hlo.is_differentiable(x) else None
        for (_, right), x in zip(found, xs, strict=True)
    ]
    for step in reversed(levels):
        gs = _through(step, gs)
    return [
        *(None if g is None else _restored(g, order, shape) for g in gs),
        *(_total(left) for left, _ in found),
    ]


def _root(
    at: Site, inits: list[Value], folded: list[Value], gs: list[Value | None]
) -> list[tuple[Value | None, Value | None]]:
    """Cotangents of the initial values and of the elements' fold.

    The initial value comes first. A body that stops the gradient of its right operand
    would stop all of it there, so under stops an inactive one, an identity, comes last,
    where JAX has none at all.
    """
    names = (view.operation.name for view in at.op.regions[0].blocks[0].operations)
    count = len(inits)
    if STOP not in names or any(at.wanted[count : 2 * count]):
        return _Step.of(at, inits, folded).pull(gs)
    found = _Step.of(at, folded, inits).pull(gs)
    return [(right, left) for left, right in found]


def _total(g: Value | None) -> Value | None:
    return None if g is None else sum_all(g)


def _through(step: _Step, gs: list[Value | None]) -> list[Value | None]:
    """Cotangents one level down; one behind those of the pairs stays where it is."""
    pairs, *rest = hlo.shape_of(step.operands[0])
    found = step.pull([None if g is None else _part(g, 0, pairs) for g in gs])
    answer: list[Value | None] = []
    for left, (a, b), g in zip(step.operands, found, gs, strict=False):
        if g is None:
            answer.append(None)
            continue
        sides = [hlo.reshape(materialize(s, left), [pairs, 1, *rest]) for s in (a, b)]
        both = hlo.reshape(hlo.concatenate(sides, 1), [2 * pairs, *rest])
        answer.append(_lengthened(both, _behind(g, pairs)))
    return answer


def _behind(x: Value, start: int) -> Value | None:
    """What comes from `start` on, if anything."""
    size = hlo.shape_of(x)[0]
    return None if start == size else _part(x, start, size)


def _lengthened(x: Value, more: Value | None) -> Value:
    return x if more is None else hlo.concatenate([x, more], 0)


def _side(x: Value, which: int) -> Value:
    """The first or the second of each pair of neighbours."""
    pairs, rest = hlo.shape_of(x)[0] // 2, hlo.shape_of(x)[1:]
    paired = hlo.reshape(_part(x, 0, 2 * pairs), [pairs, 2, *rest])
    start, limit = [0] * (2 + len(rest)), [pairs, 2, *rest]
    start[1], limit[1] = which, which + 1
    return hlo.reshape(hlo.slice_(paired, start, limit), [pairs, *rest])


def _part(x: Value, start: int, end: int) -> Value:
    shape = hlo.shape_of(x)
    if (start, end) == (0, shape[0]):
        return x
    return hlo.slice_(x, [start, *[0] * (len(shape) - 1)], [end, *shape[1:]])


def _restored(g: Value, order: list[int], shape: tuple[int, ...]) -> Value:
    moved = hlo.reshape(g, [shape[d] for d in order])
    return hlo.transpose(moved, [order.index(d) for d in range(len(order))])


RULES = {"reduce": Vjp(_reduce)}
