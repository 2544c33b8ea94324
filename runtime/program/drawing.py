"""First values of tensors in numpy: the same bits on every machine.

Random numbers are Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3"), counted by (position of the element in row-major order,
stream) and keyed by the seed. So an element's value follows from its place in the whole
tensor, and a part of a tensor is drawn without the rest. Normals are Box-Muller on
24-bit uniforms.

The arithmetic is integers, and additions, products, quotients and roots of IEEE 754,
each rounded once: numpy's own `log` and `cos` differ between processors, so both are
series in f64 here. `@init` of `pcp-expand-training` says the same in StableHLO.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pcp.initializer import Init, parse
from pcp.runtime.memory.dtypes import numpy_dtype

Words = np.ndarray
"""An array of ui32."""

CHUNK = 1 << 15
"""Elements at once: what they need stays in a processor's cache."""

ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = np.uint32(0x1BD11BDA)
ROUNDS = 20


def first_values(
    init: str,
    dtype: str,
    shape: Sequence[int],
    *,
    seed: int,
    stream: int,
    whole: Sequence[int],
    start: Sequence[int],
) -> np.ndarray:
    """The first values of a tensor, as an array of MLIR's `dtype`.

    init: an initializer, as `normal(0.02)`. shape: of the part of a tensor of shape
    `whole` that lies at `start`. seed: any integer, of which 64 bits count. stream: a
    number for each tensor of a program.
    """
    wanted, drawn = numpy_dtype(dtype), parse(init)
    if not drawn.random:
        return np.full(tuple(shape), _as(np.float64(drawn.fill), dtype), wanted)
    made = np.empty(math.prod(shape), wanted)
    key = np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32 & 0xFFFFFFFF)
    done = 0
    for places in positions(shape, whole, start):
        words = threefry(key, (places, np.full_like(places, stream)))
        made[done : done + len(places)] = _as(_drawn(drawn, *words), dtype)
        done += len(places)
    return made.reshape(tuple(shape))


def of_frozen(init: Init, matrix: np.ndarray) -> np.ndarray:
    """The values derived from a frozen matrix, in f64: its vectors' lengths."""
    return np.linalg.norm(matrix.astype(np.float64), axis=init.dimension)


def _drawn(init: Init, first: Words, second: Words) -> np.ndarray:
    """f32 numbers of a distribution, from two words each."""
    factor, term = map(np.float32, init.affine)
    if init.kind == "uniform":
        drawn = _unit(first >> 8)
    else:
        drawn = np.sqrt(np.float32(-2) * log(_unit((first >> 8) + np.uint32(1))))
        drawn *= cosine(_unit(second >> 8) * np.float32(math.tau))
    drawn *= factor
    if term:
        drawn += term
    return drawn


def _unit(top: Words) -> np.ndarray:
    """Numbers of at most 24 bits as f32 multiples of 2^-24: exact."""
    return top.astype(np.float32) * np.float32(2.0**-24)


def _as(numbers: np.ndarray | np.float64, dtype: str) -> np.ndarray:
    """The numbers in an MLIR type, rounded to nearest even."""
    wanted = numpy_dtype(dtype)
    if dtype != "bf16" or wanted != np.uint16:
        return np.asarray(numbers).astype(wanted)
    bits = np.asarray(numbers, np.float32).view(np.uint32)  # without ml_dtypes
    half = np.uint32(0x7FFF) + (bits >> 16 & 1)
    return (bits + half >> 16).astype(np.uint16)


# --- places ---


def positions(
    shape: Sequence[int], whole: Sequence[int], start: Sequence[int]
) -> Iterator[Words]:
    """The positions of a part's elements in the whole tensor, modulo 2^32, in chunks.

    Row-major, of both.
    """
    place = np.zeros((), np.uint64)
    stride = 1
    cut = len(shape)
    while cut and (cut == len(shape) or shape[cut] == whole[cut]):
        cut -= 1  # dimensions behind the last cut one lie in one run
    run = math.prod(shape[cut:])
    ahead = math.prod(whole[cut:])
    for dim in reversed(range(cut)):
        along = (np.arange(shape[dim], dtype=np.uint64) + start[dim]) * (ahead * stride)
        place = np.add.outer(along, place)
        stride *= whole[dim]
    offset = start[cut] * math.prod(whole[cut + 1 :]) if shape else 0
    firsts = place.ravel() + np.uint64(offset)
    yield from _chunks(firsts, run)


def _chunks(firsts: np.ndarray, run: int) -> Iterator[Words]:
    """Runs of one length from these places on, cut or put together."""
    if not run:
        return
    rows = max(1, CHUNK // run)
    for row in range(0, len(firsts), rows):
        some = firsts[row : row + rows].astype(np.uint32)
        for begin in range(0, run, CHUNK):
            inner = np.arange(begin, min(run, begin + CHUNK), dtype=np.uint32)
            yield np.add.outer(some, inner).ravel()


# --- bits ---


def threefry(key: Sequence[Any], counter: Sequence[Words]) -> tuple[Words, Words]:
    """Threefry-2x32-20; the counter's arrays are overwritten."""
    with np.errstate(over="ignore"):  # of two scalars; arrays wrap silently
        schedule = (*key, key[0] ^ key[1] ^ PARITY)
        a, b = counter
        a += key[0]
        b += key[1]
        high = np.empty_like(b)
        for i in range(ROUNDS):
            a += b
            left = np.uint32(ROTATIONS[i % 8])
            np.right_shift(b, np.uint32(32) - left, out=high)
            b <<= left
            b |= high
            b ^= a
            if i % 4 == 3:
                number = i // 4 + 1
                a += schedule[number % 3]
                b += schedule[(number + 1) % 3] + np.uint32(number)
    return a, b


# --- functions ---

_LN2 = math.log(2.0)
_ATANH = [2.0 / (2 * n + 1) for n in range(10)]
_SINE = [(-1.0) ** n / math.factorial(2 * n + 1) for n in range(11)]
_PI = (math.pi, 1.2246467991473532e-16)  # and what its rounding lost
_ROOT = np.uint64(0x0016A09E667F3BCD)  # √2, its exponent's bits left out
_MANTISSA, _ONE = np.uint64((1 << 52) - 1), np.uint64(1023 << 52)


def log(x: np.ndarray) -> np.ndarray:
    """ln x of normal f32 above 0, as f32: within 0.51 units in the last place."""
    bits = x.astype(np.float64).view(np.uint64)
    exponent = (bits >> np.uint64(52)).astype(np.int64) - 1023
    bits &= _MANTISSA
    above = bits > (_ROOT & _MANTISSA)
    exponent += above
    bits |= _ONE
    bits -= above.astype(np.uint64) << np.uint64(52)  # in (√½, √2]
    m = bits.view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    found = _series(_ATANH, s)
    found += exponent * _LN2
    return found.astype(np.float32)


def cosine(x: np.ndarray) -> np.ndarray:
    """cos x of f32 in [0, 2π], as f32: within 0.51 units in the last place."""
    z = np.abs(x.astype(np.float64) - _PI[0] - _PI[1])
    z -= _PI[0] / 2
    z -= _PI[1] / 2
    return _series(_SINE, z).astype(np.float32)


def _series(coefficients: Sequence[float], x: np.ndarray) -> np.ndarray:
    """c0 x + c1 x³ + c2 x⁵ + ..."""
    square = x * x
    total = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total *= square
        total += c
    total *= x
    return total
