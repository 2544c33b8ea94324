"""A mixture of experts: each token is the business of a few MLPs of many.

The router gives each expert a probability; the likeliest ones compute, and are added
up with these as weights (Shazeer et al. 2017, arXiv:1701.06538). An expert is among
them if few enough are likelier, so nothing is sorted; of equal ones the first is.

Of few rows the weights of those experts are gathered, which reads and writes them; of
many all experts compute all rows, which reads each weight once.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows, gather
from pcp.frontends.decoders.layers import ACTIVATIONS, Weights, along, f32, product
from pcp.frontends.decoders.spec import Decoder, Experts

Value = ir.Value
_PASSES = 3
"""How often memory has a gathered weight: it is read, written, and read."""


def mixture(x: Value, weights: Weights, name: str, spec: Decoder) -> Value:
    """What the experts of layer `name` add to x, [rows, width]."""
    experts = spec.experts
    assert experts is not None, "a sparse layer is of a model with experts"
    logits = product(x, weights, f"{name}.router")
    places, shares = _routed(logits, experts)
    rows, _ = hlo.shape_of(x)
    few = _PASSES * rows * experts.taken < experts.count
    compute = _by_few if few else _by_all
    return compute(x, weights, name, spec, places, shares)


def _routed(logits: Value, experts: Experts) -> tuple[Value, Value]:
    """How many experts are likelier than each, and its weight: [rows, experts]."""
    shape = rows, count = hlo.shape_of(logits)
    top = hlo.reduce(logits, hlo.scalar(float("-inf"), f32()), [1], hlo.maximum)
    powers = hlo.exponential(hlo.subtract(logits, along(top, shape, 0)))
    likely = hlo.divide(powers, along(hlo.reduce_sum(powers, [1]), shape, 0))
    cube, i32 = (rows, count, count), ir.IntegerType.get_signless(32)
    own, other = along(likely, cube, 0, 1), along(likely, cube, 0, 2)
    numbers = (hlo.iota(hlo.tensor(cube, i32), d) for d in (1, 2))
    mine, theirs = numbers
    earlier = hlo.and_(hlo.compare("EQ", other, own), hlo.compare("LT", theirs, mine))
    ahead = hlo.or_(hlo.compare("GT", other, own), earlier)
    places = hlo.reduce_sum(hlo.convert(ahead, i32), [2])
    taken = hlo.compare("LT", places, hlo.constant_like(places, experts.taken))
    shares = hlo.select(taken, likely, hlo.constant_like(likely, 0.0))
    if experts.normed:
        shares = hlo.divide(shares, along(hlo.reduce_sum(shares, [1]), shape, 0))
    return places, shares


def _by_all(
    x: Value,
    weights: Weights,
    name: str,
    spec: Decoder,
    places: Value,
    shares: Value,
) -> Value:
    """Every expert computes every row; what was not chosen counts nothing."""
    act = ACTIVATIONS[spec.activation]
    gate, up = (product(x, weights, f"{name}.experts_{what}") for what in _INTO)
    inside = hlo.multiply(act(gate), up)
    shape = hlo.shape_of(inside)
    zero = hlo.constant_like(inside, 0.0)
    used = along(hlo.compare("NE", shares, hlo.constant_like(shares, 0.0)), shape, 0, 1)
    inside = hlo.select(used, hlo.multiply(inside, along(shares, shape, 0, 1)), zero)
    down = hlo.convert(weights(f"{name}.experts_down.weight"), f32())
    each = hlo.dot_general(inside, down, batch=([1], [0]), contract=([2], [2]))
    return hlo.reduce_sum(each, [0])


_INTO = ("gate", "up")


def _by_few(
    x: Value,
    weights: Weights,
    name: str,
    spec: Decoder,
    places: Value,
    shares: Value,
) -> Value:
    """The weights of each row's experts are gathered for it."""
    assert spec.experts is not None, "a sparse layer is of a model with experts"
    (rows, width), taken = hlo.shape_of(x), spec.experts.taken
    numbers, parts = _chosen(places, shares, taken)
    indices = hlo.reshape(numbers, [rows * taken, 1])

    def gathered(what: str) -> Value:
        w = weights(f"{name}.experts_{what}.weight")
        _, *each = hlo.shape_of(w)
        windows = Windows((1, 2), (0,), (), (), (0,), 1)
        return hlo.convert(gather(w, indices, windows, [1, *each]), f32())

    def of_each(value: Value, what: str) -> Value:
        return hlo.dot_general(
            value, gathered(what), batch=([0], [0]), contract=([1], [2])
        )

    again = hlo.reshape(along(x, (rows, taken, width), 0, 2), [rows * taken, width])
    gate, up = (of_each(again, what) for what in _INTO)
    made = of_each(hlo.multiply(ACTIVATIONS[spec.activation](gate), up), "down")
    made = hlo.reshape(made, [rows, taken, width])
    parts = along(parts, (rows, taken, width), 0, 1)
    return hlo.reduce_sum(hlo.multiply(made, parts), [1])


def _chosen(places: Value, shares: Value, taken: int) -> tuple[Value, Value]:
    """Numbers and weights of each row's experts, [rows, taken], the likeliest first."""
    rows, count = hlo.shape_of(places)
    cube, i32 = (rows, taken, count), ir.IntegerType.get_signless(32)
    wanted = hlo.iota(hlo.tensor(cube, i32), 1)
    here = hlo.compare("EQ", along(places, cube, 0, 2), wanted)
    experts = hlo.iota(hlo.tensor(cube, i32), 2)
    found = hlo.select(here, experts, hlo.constant_like(experts, 0))
    weights = along(shares, cube, 0, 2)
    parts = hlo.select(here, weights, hlo.constant_like(weights, 0.0))
    return hlo.reduce_sum(found, [2]), hlo.reduce_sum(parts, [2])
