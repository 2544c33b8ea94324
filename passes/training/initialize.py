"""First values of parameters, as IR: a function of the seed and nothing else.

Random numbers are Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3"), counted by (position of the element, number of the
parameter) and keyed by the seed: elementwise, in integers. Normals are Box-Muller on
24-bit uniforms, with the `log` and `cos` of whoever runs it. A bundle has the same as
data (`pcp-first-values`), which `pcp.runtime.program.drawing` computes with the one
`log` and `cos` that are rounded correctly, so that the bits are equal everywhere.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.threefry import positions, threefry
from pcp.initializer import Init
from pcp.passes.core import functions
from pcp.passes.core.functions import Port

Value = ir.Value

# --- building ---


@dataclass(frozen=True)
class Key:
    """A seed as two 32-bit words, rank-0 tensors."""

    low: Value
    high: Value


Draw = Callable[[ir.Type, Key, Value], Value]
"""A tensor of a type, by a key and a stream (rank-0 i32)."""


def key_of(seed: Value) -> Key:
    """Split a rank-0 i64 seed."""
    i32 = ir.IntegerType.get_signless(32)
    high = hlo.shift_right_logical(seed, hlo.constant_like(seed, 32))
    return Key(hlo.convert(seed, i32), hlo.convert(high, i32))


def build(init: Init, type_: ir.Type, key: Key, stream: Value) -> Value:
    """A drawn tensor of `type_`; `stream` (rank-0 i32) numbers the parameter."""
    drawn = _DRAWS[init.kind](random_words(hlo.shape_of(type_), key, stream), init)
    return hlo.convert(drawn, hlo.element_type(type_))


def define(module: ir.Module, name: str, type_: ir.Type, draw: Draw) -> None:
    """A private function that draws a tensor: of a key's words and a stream."""
    word = hlo.tensor((), ir.IntegerType.get_signless(32))
    inputs = [Port(n, "seed", word) for n in ("low", "high", "stream")]

    def drawn(low: Value, high: Value, stream: Value) -> list[tuple[Port, Value]]:
        return [(Port("drawn", "result", type_), draw(type_, Key(low, high), stream))]

    functions.define(module, name, inputs, drawn, private=True)


def _normal(words: tuple[Value, Value], init: Init) -> Value:
    """mean + std · √(-2 ln u) cos(2π v), u in (0, 1], v in [0, 1)."""
    u, v = unit(words[0], half_open_above=True), unit(words[1])
    radius = hlo.sqrt(_times(hlo.log(u), -2.0))
    return _affine(hlo.multiply(radius, hlo.cosine(_times(v, math.tau))), init)


def _uniform(words: tuple[Value, Value], init: Init) -> Value:
    """low + (high - low) · v, v in [0, 1)."""
    return _affine(unit(words[0]), init)


_DRAWS = {"normal": _normal, "uniform": _uniform}


def unit(word: Value, *, half_open_above: bool = False) -> Value:
    """32-bit words as multiples of 2^-24 in [0, 1), or in (0, 1]."""
    top = hlo.shift_right_logical(word, hlo.constant_like(word, 8))
    number = hlo.convert(top, ir.F32Type.get())
    if half_open_above:
        number = hlo.add(number, hlo.constant_like(number, 1.0))
    return _times(number, 2.0**-24)


def random_words(
    shape: tuple[int, ...], key: Key, stream: Value
) -> tuple[Value, Value]:
    """Two independent i32 words for each position of `shape`."""
    return threefry(
        (hlo.splat(key.low, shape), hlo.splat(key.high, shape)),
        (positions(shape), hlo.splat(stream, shape)),
    )


def _times(x: Value, factor: float) -> Value:
    return hlo.multiply(x, hlo.constant_like(x, factor))


def _affine(x: Value, init: Init) -> Value:
    factor, term = init.affine
    scaled = _times(x, factor)
    return hlo.add(scaled, hlo.constant_like(x, term)) if term else scaled
