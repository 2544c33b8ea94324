"""First values of parameters, as IR: a function of the seed and nothing else.

`normal(0.02)`, `normal(mean,std)`, `uniform(low,high)`, `ones`, `zeros` and
`constant(value)`. Random numbers are Threefry-2x32 with 20 rounds (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3"), counted by (position of the element,
number of the parameter) and keyed by the seed: elementwise, in integers, so the bits
are equal on every target. Normals are Box-Muller on 24-bit uniforms; `log` and `cos`
may differ in the last place between targets.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.threefry import positions, threefry
from pcp.errors import ConfigError, nearest
from pcp.passes.core import functions
from pcp.passes.core.functions import Port

Value = ir.Value

DEFAULT_STD = 0.02


@dataclass(frozen=True)
class Init:
    """A parsed initializer: its kind and its numbers."""

    kind: str
    numbers: tuple[float, ...] = ()

    @property
    def random(self) -> bool:
        """Whether it draws numbers at all."""
        return self.kind in _DRAWS

    @property
    def fill(self) -> float:
        """The value at every position, of one that draws nothing."""
        return _FILLS[self.kind](*self.numbers)


# How many numbers each kind takes.
COUNTS = {"normal": (1, 2), "uniform": (2,), "constant": (1,), "ones": (), "zeros": ()}


def parse(text: str) -> Init:
    """Read `normal(0.02)` and the like; `ConfigError` says what is wrong."""
    match = re.fullmatch(r"\s*(\w+)\s*(?:\(([^()]*)\))?\s*", text)
    kind = match.group(1) if match else text
    if match is None or kind not in COUNTS:
        known = "normal(std), normal(mean,std), uniform(low,high), constant(c), "
        raise ConfigError(
            f"no initializer {text!r} (known: {known}ones, zeros)."
            + nearest(kind, COUNTS)
        )
    numbers = _numbers(match.group(2) or "", text)
    if len(numbers) not in (COUNTS[kind] or (0,)):
        raise ConfigError(f"initializer {text!r} has {len(numbers)} numbers")
    return Init(kind, numbers)


def _numbers(text: str, whole: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(f"initializer {whole!r}: {error}") from error
    if not all(map(math.isfinite, numbers)):
        raise ConfigError(f"initializer {whole!r} has a number that is not finite")
    return numbers


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


_FILLS: dict[str, Callable[..., float]] = {
    "ones": lambda: 1.0,
    "zeros": lambda: 0.0,
    "constant": lambda value: value,
}


def define(module: ir.Module, name: str, type_: ir.Type, draw: Draw) -> None:
    """A private function that draws a tensor: of a key's words and a stream."""
    word = hlo.tensor((), ir.IntegerType.get_signless(32))
    inputs = [Port(n, "seed", word) for n in ("low", "high", "stream")]

    def drawn(low: Value, high: Value, stream: Value) -> list[tuple[Port, Value]]:
        return [(Port("drawn", "result", type_), draw(type_, Key(low, high), stream))]

    functions.define(module, name, inputs, drawn, private=True)


def _normal(words: tuple[Value, Value], init: Init) -> Value:
    """mean + std · √(-2 ln u) cos(2π v), u in (0, 1], v in [0, 1)."""
    mean, std = init.numbers if len(init.numbers) == 2 else (0.0, *init.numbers)
    u, v = unit(words[0], half_open_above=True), unit(words[1])
    radius = hlo.sqrt(_times(hlo.log(u), -2.0))
    return _affine(hlo.multiply(radius, hlo.cosine(_times(v, math.tau))), std, mean)


def _uniform(words: tuple[Value, Value], init: Init) -> Value:
    """low + (high - low) · v, v in [0, 1)."""
    low, high = init.numbers
    return _affine(unit(words[0]), high - low, low)


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


def _affine(x: Value, factor: float, term: float) -> Value:
    scaled = _times(x, factor)
    return hlo.add(scaled, hlo.constant_like(x, term)) if term else scaled
