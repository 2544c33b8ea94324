"""Lossy codecs: float32 values as fewer bytes, and back.

A codec maps a flat float32 array to bytes whose number depends on the element
count alone (`wire_bytes`), so that a receiver knows it before any byte arrives.
Decoding uses elementwise arithmetic only: all machines decode the same bytes to
the same values. Blocks have `BLOCK` elements, the last one may be shorter.

| codec      | bytes for n elements      | a block's value                         |
|------------|---------------------------|-----------------------------------------|
| fp16, bf16 | 2 n                       | rounded to nearest even                 |
| fp8        | n + 4 ceil(n/256)         | e4m3 times the block's scale            |
| int8       | n + 4 ceil(n/256)         | integer in [-127, 127] times the scale  |
| int8zp     | n + 8 ceil(n/256)         | least value + [0, 255] times the scale  |
| e3m0       | ceil(n/2) + 4 ceil(n/256) | sign and power of two, or zero          |
| int2       | ceil(n/4) + 4 ceil(n/256) | {-1.5, -0.5, 0.5, 1.5} times the scale  |
| topk:r     | 8 k, k = ceil(r n)        | the k largest by magnitude, as they are |
| randomk:r  | 4 k, k = ceil(r n)        | at k places drawn from a shared seed    |

Nothing non-finite is hidden: in a scaled block it makes the whole block NaN;
fp16, bf16 and topk carry it as it is (topk takes it for the largest); what
exceeds fp16's range becomes infinite. randomk carries what it happens to draw.

Sources: Dettmers et al., "8-bit optimizers via block-wise quantization" (2021)
for block scales; Douillard et al., "Streaming DiLoCo" (2025) for E3M0; Stich et
al., "Sparsified SGD with memory" (2018) for top-k and random-k with feedback.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pcp.errors import ProtocolError, UsageError, check_name, nearest
from pcp.runtime.compression.codec_scratch import SCRATCH

BLOCK = 256
"""Elements that share a scale."""
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


class Codec(ABC):
    """A codec of float32 values. Stateless; safe between threads."""

    name: str
    """The text that `codec` reads and members compare."""
    total = False
    """Whether any bytes of the right number stand for values: `decode` refuses none."""

    @abstractmethod
    def wire_bytes(self, count: int) -> int:
        """How many bytes `encode` makes of `count` elements."""

    @abstractmethod
    def encode(self, values: F32, seed: int = 0) -> U8:
        """The bytes of a flat array, which stays as it is; they may be its memory.

        `seed` is the one the receivers will use.
        """

    @abstractmethod
    def decode(self, wire: U8, count: int, seed: int = 0) -> F32:
        """The values that `encode` wrote; ProtocolError if they cannot be."""

    def decode_into(self, out: F32, wire: U8, seed: int = 0) -> None:
        """`decode` into a contiguous array."""
        out[:] = self.decode(wire, out.size, seed)

    def check(self, wire: U8, count: int) -> None:
        """Refuse bytes that `encode` would not have made of `count` elements."""
        if wire.size != self.wire_bytes(count):
            raise ProtocolError(
                f"{wire.size} bytes of {self.name} for {count} elements, "
                f"which take {self.wire_bytes(count)}"
            )


class Cast(Codec):
    """Every element in a narrower floating-point type."""

    total = True

    def __init__(self, name: str, dtype: np.dtype) -> None:
        self.name = name
        self._dtype = dtype

    def wire_bytes(self, count: int) -> int:
        return count * self._dtype.itemsize

    def encode(self, values: F32, seed: int = 0) -> U8:
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(self._dtype).view(np.uint8)

    def decode(self, wire: U8, count: int, seed: int = 0) -> F32:
        self.check(wire, count)
        return np.ascontiguousarray(wire).view(self._dtype).astype(np.float32)


@dataclass(frozen=True)
class Grid:
    """The numbers a scaled block is rounded to.

    `peak` is what the block's largest magnitude becomes. `quantise` takes
    scaled values, which it may overwrite, to symbols (uint8, one each), which are
    packed `per_byte` to a byte; `read` writes what so many bytes stand for.
    """

    peak: float
    per_byte: int
    quantise: Callable[[F32], U8]
    read: Callable[[U8, F32], None]


class Scaled(Codec):
    """Blocks of symbols, each block with a float32 scale: scales first."""

    total = True

    def __init__(self, name: str, grid: Grid) -> None:
        self.name = name
        self._grid = grid

    def wire_bytes(self, count: int) -> int:
        return 4 * -(-count // BLOCK) + -(-count // self._grid.per_byte)

    def encode(self, values: F32, seed: int = 0) -> U8:
        blocks = _blocks(values)
        with np.errstate(all="ignore"):
            # The largest magnitude is NaN or infinite when any element is.
            scaled = np.abs(blocks, out=SCRATCH.like(blocks))
            scale = scaled.max(axis=1, initial=0) / np.float32(self._grid.peak)
            finite = np.isfinite(scale)
            scale[~finite] = np.nan
            # A scale that underflowed would divide by nothing: such values are 0.
            tiny = scale < np.finfo(np.float32).tiny
            scale[tiny] = 0
            inverse = np.where(tiny, np.float32(0), 1 / scale)
            np.multiply(blocks, inverse[:, None], out=scaled)
            if not finite.all():
                np.nan_to_num(scaled, copy=False)
        head = scale.view(np.uint8)
        packed = _pack(self._grid.quantise(scaled), self._grid.per_byte)
        used = self.wire_bytes(values.size) - head.size
        return np.concatenate([head, packed[:used]])

    def decode(self, wire: U8, count: int, seed: int = 0) -> F32:
        padded = np.empty(-(-count // BLOCK) * BLOCK, np.float32)
        self._decode(wire, count, padded)
        return padded[:count]

    def decode_into(self, out: F32, wire: U8, seed: int = 0) -> None:
        if out.size % BLOCK:
            super().decode_into(out, wire, seed)
        else:
            self._decode(wire, out.size, out)

    def _decode(self, wire: U8, count: int, padded: F32) -> None:
        """`count` values into whole blocks."""
        self.check(wire, count)
        blocks = padded.reshape(-1, BLOCK)
        scale = np.ascontiguousarray(wire[: 4 * len(blocks)]).view(np.float32)
        symbols = wire[4 * len(blocks) :]
        self._grid.read(symbols, padded[: symbols.size * self._grid.per_byte])
        padded[count:] = 0
        with np.errstate(all="ignore"):
            # In place: half the memory goes through the cache.
            np.multiply(blocks, scale[:, None], out=blocks)


class Affine(Codec):
    """Blocks of bytes, each with its least value and its step: for data off zero."""

    name = "int8zp"
    total = True

    def wire_bytes(self, count: int) -> int:
        return 8 * -(-count // BLOCK) + count

    def encode(self, values: F32, seed: int = 0) -> U8:
        blocks = _blocks(values, fill="edge")
        with np.errstate(all="ignore"):
            low, high = blocks.min(axis=1), blocks.max(axis=1)
            # Halves: the difference of two finite numbers may not be finite.
            step = (high / 2 - low / 2) / np.float32(127.5)
            finite = np.isfinite(step)
            step[~finite] = np.nan
            flat = step < np.finfo(np.float32).tiny
            inverse = np.where(flat, np.float32(0), 1 / step)
            scaled = blocks * inverse[:, None]
            scaled -= (low * inverse)[:, None]
            if not finite.all():
                np.nan_to_num(scaled, copy=False)
            np.rint(scaled, out=scaled)
            np.clip(scaled, 0, 255, out=scaled)
        step[flat] = 0
        symbols = scaled.astype(np.uint8).reshape(-1)[: values.size]
        return np.concatenate([low.view(np.uint8), step.view(np.uint8), symbols])

    def decode(self, wire: U8, count: int, seed: int = 0) -> F32:
        self.check(wire, count)
        blocks = -(-count // BLOCK)
        head = np.ascontiguousarray(wire[: 8 * blocks]).view(np.float32)
        low, step = head[:blocks, None], head[blocks:, None]
        with np.errstate(all="ignore"):
            values = _blocks(wire[8 * blocks :].astype(np.float32))
            # Halves again, for the same reason.
            values *= step / 2
            values += low / 2
            values += values
        return values.reshape(-1)[:count]


class TopK(Codec):
    """The largest elements by magnitude, with their places; the rest is 0."""

    def __init__(self, ratio: float) -> None:
        self.name = f"topk:{ratio:g}"
        self._ratio = ratio

    def wire_bytes(self, count: int) -> int:
        return 8 * _share(self._ratio, count)

    def encode(self, values: F32, seed: int = 0) -> U8:
        k = _share(self._ratio, values.size)
        if not k:
            return np.empty(0, np.uint8)
        size = np.abs(values)
        size[np.isnan(size)] = np.inf
        places = np.sort(np.argpartition(size, values.size - k)[values.size - k :])
        return np.concatenate(
            [places.astype("<u4").view(np.uint8), values[places].view(np.uint8)]
        )

    def decode(self, wire: U8, count: int, seed: int = 0) -> F32:
        self.check(wire, count)
        k = wire.size // 8
        places = np.ascontiguousarray(wire[: 4 * k]).view("<u4")
        # Strictly ascending: a place twice would make the sum depend on order.
        if k and (places[-1] >= count or (places[1:] <= places[:-1]).any()):
            raise ProtocolError(f"{self.name}: places that are not ascending")
        out = np.zeros(count, np.float32)
        out[places] = np.ascontiguousarray(wire[4 * k :]).view(np.float32)
        return out


class RandomK(Codec):
    """Elements at places that all members draw alike from the seed.

    The elements are sent unchanged. Without error feedback the rest is lost, and the
    expectation is the ratio times the input.
    """

    total = True

    def __init__(self, ratio: float) -> None:
        self.name = f"randomk:{ratio:g}"
        self._ratio = ratio

    def wire_bytes(self, count: int) -> int:
        return 4 * _share(self._ratio, count)

    def encode(self, values: F32, seed: int = 0) -> U8:
        return values[self._places(values.size, seed)].view(np.uint8)

    def decode(self, wire: U8, count: int, seed: int = 0) -> F32:
        self.check(wire, count)
        out = np.zeros(count, np.float32)
        out[self._places(count, seed)] = np.ascontiguousarray(wire).view(np.float32)
        return out

    def _places(self, count: int, seed: int) -> NDArray[np.int64]:
        """One place in each of k equal stretches: ascending, in time O(k)."""
        k = _share(self._ratio, count)
        edges = np.arange(k + 1, dtype=np.int64) * count // max(k, 1)
        # Philox is specified bit by bit, so that all versions draw alike.
        draw = np.random.Philox(key=[seed % 2**64, count]).random_raw(k)
        widths = (edges[1:] - edges[:-1]).astype(np.uint64)
        return edges[:-1] + (draw % widths).astype(np.int64)


def codec(name: "str | Codec") -> Codec:
    """The codec of this name (see the module's table), or UsageError."""
    if isinstance(name, Codec):
        return name
    check_name("a compression", name)
    kind, _, ratio = name.partition(":")
    if kind in _SPARSE:
        try:
            share = float(ratio or _DEFAULT_RATIO)
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            raise UsageError(f"{name!r}: a ratio in (0, 1], for example {kind}:0.01")
        return _SPARSE[kind](share)
    if name not in _FIXED:
        known = [*_FIXED, *(f"{kind}:RATIO" for kind in _SPARSE)]
        raise UsageError(
            f"unknown compression {name!r}; there are {', '.join(known)}."
            f"{nearest(name, known)}"
        )
    return _fixed(name)


@cache
def _fixed(name: str) -> Codec:
    """The codec of this name, built once: its tables take longer than small arrays."""
    return _FIXED[name]()


def _blocks(values: F32, fill: Literal["constant", "edge"] = "constant") -> F32:
    """Values as rows of BLOCK elements; the last is padded with zeros or its end."""
    short = -values.size % BLOCK
    if short:
        values = np.pad(values, (0, short), mode=fill)
    return values.reshape(-1, BLOCK)


def _share(ratio: float, count: int) -> int:
    return min(count, int(np.ceil(ratio * count)))


def _pack(symbols: U8, per_byte: int) -> U8:
    """Pack `per_byte` symbols into a byte, the first in the lowest bits."""
    if per_byte == 1:
        return symbols.reshape(-1)
    bits = 8 // per_byte
    # Those of one byte as one number, eight bits apart: they move together.
    words = symbols.reshape(-1).view(f"<u{per_byte}")
    packed = words.copy()
    for i in range(1, per_byte):
        packed |= words >> i * (8 - bits)
    return packed.astype(np.uint8)


def _reader(levels: F32) -> Callable[[U8, F32], None]:
    """A function that writes the levels of the symbols in each byte."""
    bits = len(levels).bit_length() - 1
    symbols = np.arange(256)[:, None] >> np.arange(0, 8, bits)
    table = levels[symbols & (len(levels) - 1)]
    item = np.dtype((np.void, table.itemsize * table.shape[1]))
    byte = table.view(item).reshape(-1)

    def read(packed: U8, out: F32) -> None:
        np.take(byte, packed, out=out.view(item), mode="clip")

    return read


# The grids.


def _to_int8(scaled: F32) -> U8:
    return np.rint(scaled, out=scaled).astype(np.int8).view(np.uint8)


def _from_int8(symbols: U8, out: F32) -> None:
    np.copyto(out, symbols.view(np.int8))


_E3M0_SMALLEST = -6
"""Magnitudes are 2^-6 ... 2^0 times the scale, and zero: with the sign, 4 bits."""


def _to_e3m0(scaled: F32) -> U8:
    """Rounded to the nearest power of two, ties upwards; below half the least, 0."""
    number = scaled.view(np.uint32)
    sign = (number >> np.uint32(28)).astype(np.uint8) & np.uint8(8)
    number &= np.uint32(0x7FFFFFFF)
    nonzero = scaled >= np.ldexp(np.float32(0.5), _E3M0_SMALLEST)
    # The first bit of the mantissa, which 1.5 times a power has, carries into the
    # exponent.
    number += np.uint32(0x00400000)
    number >>= np.uint32(23)
    np.clip(number, 127 + _E3M0_SMALLEST, 127, out=number)
    number -= np.uint32(127 + _E3M0_SMALLEST - 1)
    return number.astype(np.uint8) * nonzero | sign


_E3M0 = np.array(
    [
        sign * (2.0 ** (_E3M0_SMALLEST + m - 1) if m else 0.0)
        for sign in (1, -1)
        for m in range(8)
    ],
    np.float32,
)
_INT2 = np.array([-1.5, -0.5, 0.5, 1.5], np.float32)


def _to_int2(scaled: F32) -> U8:
    """The nearest level; a zero becomes +0.5 and -0.5 in turn, not always one."""
    odd = scaled[:, 1::2]
    odd[odd == 0] = -0.5
    np.floor(scaled, out=scaled)
    scaled += 2
    return np.clip(scaled, 0, 3, out=scaled).astype(np.uint8)


def _fp8() -> Codec:
    try:
        from ml_dtypes import float8_e4m3fn
    except ImportError:
        raise UsageError("fp8 needs the package ml_dtypes on this machine") from None

    # A cast takes long for each element: all that bfloat16 can hold is cast once.
    wide = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    with np.errstate(all="ignore"):
        symbols = wide.view(np.float32).astype(float8_e4m3fn).view(np.uint8)

    def to(scaled: F32) -> U8:
        bits = scaled.view(np.uint32)
        upper = (bits >> np.uint32(16)).astype(np.uint16)
        # Rounded to odd: what is dropped here makes no tie there (Boldo and
        # Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
        upper |= (bits & np.uint32(0xFFFF)) != 0
        return np.take(symbols, upper, mode="clip")

    levels = np.arange(256, dtype=np.uint8).view(float8_e4m3fn).astype(np.float32)
    return Scaled("fp8", Grid(448.0, 1, to, _reader(levels)))


def _bf16() -> Codec:
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise UsageError("bf16 needs the package ml_dtypes on this machine") from None
    return Cast("bf16", np.dtype(bfloat16))


_FIXED: dict[str, Callable[[], Codec]] = {
    "fp16": lambda: Cast("fp16", np.dtype(np.float16)),
    "bf16": _bf16,
    "fp8": _fp8,
    "int8": lambda: Scaled("int8", Grid(127.0, 1, _to_int8, _from_int8)),
    "int8zp": Affine,
    "e3m0": lambda: Scaled("e3m0", Grid(1.0, 2, _to_e3m0, _reader(_E3M0))),
    "int2": lambda: Scaled("int2", Grid(1.5, 4, _to_int2, _reader(_INT2))),
}
_SPARSE: dict[str, Callable[[float], Codec]] = {"topk": TopK, "randomk": RandomK}
_DEFAULT_RATIO = "0.01"
