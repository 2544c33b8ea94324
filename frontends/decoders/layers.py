"""The parts of a decoder as StableHLO: norms, rotary embedding, attention, MLP.

Rows are tokens: x is [rows, width]. Heads are dimensions of their own, [rows, keys,
group, d], so that a mesh cuts between them. A cache is [keys, positions, d].
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.hlo_indexing import Windows, gather
from pcp.frontends.decoders import stored
from pcp.frontends.decoders.spec import Decoder, Norm, Rope
from pcp.frontends.decoders.stored import Quantized

Value = ir.Value
Weights = Callable[[str], Any]
"""A weight by the name that `Decoder.pieces` has for it: of f32, or `Quantized`."""

#: What a masked score becomes: e to its power is zero, and no row is all of it.
MASKED = float(np.finfo(np.float32).min)


def f32() -> ir.Type:
    """The type that is computed in."""
    return ir.F32Type.get()


def constant(array: np.ndarray) -> Value:
    """A constant of f32 that is not a splat."""
    array = np.ascontiguousarray(array, np.float32)
    value = ir.DenseElementsAttr.get(array)
    return hlo.op("constant", [], [hlo.tensor(array.shape, f32())], value=value).result


def along(x: Value, shape: Sequence[int], *dimensions: int) -> Value:
    """x with its dimensions at these places of `shape`, the same along the others."""
    return hlo.broadcast_in_dim(x, list(shape), list(dimensions))


def product(
    x: Value, weights: Weights, name: str, summed: int = 1, *, flat: bool = False
) -> Value:
    """x · wᵀ over the last `summed` dimensions of both, and its bias if it has one.

    With `flat` it is a product of matrices, of which IREE makes its best code.
    """
    w = weights(f"{name}.weight")
    if isinstance(w, Quantized):
        return _plus_bias(stored.product(x, w, summed), weights, name)
    rank, free = len(hlo.shape_of(x)), len(hlo.shape_of(w)) - summed
    outer = [*hlo.shape_of(x)[: rank - summed], *hlo.shape_of(w)[:free]]
    w = hlo.convert(w, f32())
    if flat:
        x, w = _matrix(x, rank - summed), _matrix(w, free)
        rank, free, summed = 2, 1, 1
    over = (range(rank - summed, rank), range(free, free + summed))
    result = hlo.reshape(hlo.dot_general(x, w, contract=over), outer)
    return _plus_bias(result, weights, name)


def _matrix(x: Value, rows: int) -> Value:
    """x with its first `rows` dimensions as one, and the others."""
    shape = hlo.shape_of(x)
    return hlo.reshape(x, [prod(shape[:rows]), prod(shape[rows:])])


def _plus_bias(x: Value, weights: Weights, name: str) -> Value:
    try:
        bias = weights(f"{name}.bias")
    except KeyError:
        return x
    shape = hlo.shape_of(x)
    return hlo.add(x, along(bias, shape, *range(1, len(shape))))


# --- pointwise ---


def norm(x: Value, weights: Weights, name: str, kind: Norm) -> Value:
    """Over the last dimension; see `Norm`."""
    shape = hlo.shape_of(x)
    last, outer = len(shape) - 1, list(range(len(shape) - 1))
    share = hlo.scalar(1 / shape[last], f32())

    def mean(value: Value) -> Value:
        total = hlo.reduce_sum(value, [last])
        return hlo.multiply(total, hlo.splat(share, hlo.shape_of(total)))

    if kind.kind == "layer":
        x = hlo.subtract(x, along(mean(x), shape, *outer))
    square = mean(hlo.multiply(x, x))
    root = hlo.rsqrt(hlo.add(square, hlo.constant_like(square, kind.eps)))
    x = hlo.multiply(x, along(root, shape, *outer))
    w = weights(f"{name}.weight")
    if kind.offset:
        w = hlo.add(w, hlo.constant_like(w, kind.offset))
    x = hlo.multiply(x, along(w, shape, last))
    if kind.kind == "layer":
        x = hlo.add(x, along(weights(f"{name}.bias"), shape, last))
    return x


def capped(x: Value, cap: float) -> Value:
    """c · tanh(x / c), or x where c is 0."""
    if not cap:
        return x
    inside = hlo.multiply(x, hlo.constant_like(x, 1 / cap))
    return hlo.multiply(hlo.tanh(inside), hlo.constant_like(x, cap))


def _silu(x: Value) -> Value:
    return hlo.multiply(x, hlo.logistic(x))


def _relu(x: Value) -> Value:
    return hlo.maximum(x, hlo.constant_like(x, 0))


def _gelu(x: Value) -> Value:
    inside = hlo.multiply(x, hlo.constant_like(x, 0.5**0.5))
    erf = hlo.op("chlo.erf", [inside], [x.type]).result
    return _half_plus(x, erf)


def _gelu_tanh(x: Value) -> Value:
    cubic = hlo.multiply(hlo.multiply(x, x), hlo.multiply(x, _of(x, 0.044715)))
    inside = hlo.multiply(hlo.add(x, cubic), _of(x, (2 / np.pi) ** 0.5))
    return _half_plus(x, hlo.tanh(inside))


def _half_plus(x: Value, y: Value) -> Value:
    return hlo.multiply(hlo.multiply(x, _of(x, 0.5)), hlo.add(_of(x, 1), y))


def _of(x: Value, value: float) -> Value:
    return hlo.constant_like(x, float(value))


ACTIVATIONS: Mapping[str, Callable[[Value], Value]] = {
    "silu": _silu,
    "relu": _relu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
}


# --- a block's two halves ---


def embed(tokens: Value, weights: Weights, spec: Decoder) -> Value:
    """Rows of the table, [rows, width]."""
    rows = hlo.shape_of(tokens)
    windows = Windows((1,), (0,), (), (), (0,), 1)
    indices = hlo.reshape(tokens, [*rows, 1])
    table = weights("embed.weight")
    if isinstance(table, Quantized):
        x = stored.rows(table, tokens)
    else:
        x = hlo.convert(gather(table, indices, windows, [1, spec.width]), f32())
    if spec.embed_scale != 1:
        x = hlo.multiply(x, hlo.constant_like(x, spec.embed_scale))
    return x


def mlp(x: Value, weights: Weights, name: str, spec: Decoder) -> Value:
    """`down(act(gate x) · up x)`, or `down(act(up x))`."""
    act = ACTIVATIONS[spec.activation]
    up = product(x, weights, f"{name}.up")
    if spec.gated:
        up = hlo.multiply(act(product(x, weights, f"{name}.gate")), up)
    else:
        up = act(up)
    return product(up, weights, f"{name}.down")


def turns(positions: Value, rope: Rope) -> tuple[Value, Value]:
    """Cosines and sines of the angles at `positions`, [rows, pairs]."""
    (rows,), pairs = hlo.shape_of(positions), len(rope.frequencies)
    places = along(hlo.convert(positions, f32()), (rows, pairs), 0)
    each = along(constant(np.array(rope.frequencies)), (rows, pairs), 1)
    angles = hlo.multiply(places, each)
    cosines, sines = hlo.cosine(angles), hlo.sine(angles)
    if rope.scale != 1:
        cosines = hlo.multiply(cosines, _of(cosines, rope.scale))
        sines = hlo.multiply(sines, _of(sines, rope.scale))
    return cosines, sines


def rotated(x: Value, turn: tuple[Value, Value]) -> Value:
    """Each pair (i, i + pairs) of the last dimension by its angle; x is [rows, .., d].

    (a, b) becomes (a cos - b sin, b cos + a sin).
    """
    shape = hlo.shape_of(x)
    pairs = hlo.shape_of(turn[0])[1]
    a, b = _columns(x, 0, pairs), _columns(x, pairs, 2 * pairs)
    last = len(shape) - 1
    cosines, sines = (along(t, hlo.shape_of(a), 0, last) for t in turn)
    parts = [
        hlo.subtract(hlo.multiply(a, cosines), hlo.multiply(b, sines)),
        hlo.add(hlo.multiply(b, cosines), hlo.multiply(a, sines)),
    ]
    if 2 * pairs < shape[last]:
        parts.append(_columns(x, 2 * pairs, shape[last]))
    return hlo.concatenate(parts, last)


def _columns(x: Value, start: int, limit: int) -> Value:
    *outer, _ = hlo.shape_of(x)
    return hlo.slice_(x, [0] * len(outer) + [start], [*outer, limit])


def visible(positions: Value, context: int, window: int) -> Value:
    """Which of the cache's positions a row sees, [rows, context] of i1.

    Itself and those before it; with a window only that many, itself among them.
    """
    (rows,), i32 = hlo.shape_of(positions), ir.IntegerType.get_signless(32)
    keys = hlo.iota(hlo.tensor((rows, context), i32), 1)
    own = along(positions, (rows, context), 0)
    seen = hlo.compare("LE", keys, own)
    if window and window < context:
        first = hlo.subtract(own, hlo.constant_like(own, window))
        seen = hlo.and_(seen, hlo.compare("GT", keys, first))
    return seen


def softmax(scores: Value, seen: Value, rows: int) -> Value:
    """Over the last dimension of scores, whose dimension `rows` counts the rows."""
    shape = hlo.shape_of(scores)
    last = len(shape) - 1
    masked = hlo.select(
        along(seen, shape, rows, last), scores, hlo.constant_like(scores, MASKED)
    )
    outer = list(range(last))
    least = hlo.scalar(MASKED, f32())
    top = hlo.reduce(masked, least, [last], hlo.maximum)
    powers = hlo.exponential(hlo.subtract(masked, along(top, shape, *outer)))
    total = hlo.reduce_sum(powers, [last])
    return hlo.divide(powers, along(total, shape, *outer))
