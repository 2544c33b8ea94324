"""Named arrays on disk, in the safetensors format, and their digest.

The format: the length of a JSON header (8 bytes, little-endian), the header (name ->
dtype, shape, and the first and last byte of the data), the data. The header is padded
with spaces so that data starts at a multiple of 64 bytes, which lets a runtime map it
without a copy. No part of a file is executed, and all sizes are checked against the
file's size before use.

The package safetensors aligns data to 8 bytes, and its writer takes all tensors at
once: a state that comes in pieces would have to be whole in memory first. Its reader
copies each tensor and does not say where in the file it lies; here a file is mapped,
its pieces are read by their places, and what is wrong with a file is an error of pcp's
that names it. Tests read each other's files (`tests/training/storage`).
"""

import hashlib
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np

from pcp import outside, strict_json
from pcp.errors import StateMismatch

Arrays = dict[str, np.ndarray]

#: Errors of reading bytes that are no such file.
_INVALID = (ValueError, KeyError, TypeError, AttributeError, struct.error)

INDEX = ".index.json"
ALIGNMENT = 64
PIECE = 16 << 20
"""The bytes of one write."""
MAX_HEADER = 64 << 20
_LENGTH = struct.Struct("<Q")

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}
_NAMES = {numpy: name for name, numpy in _DTYPES.items()}
_NARROW = ("BF16", "F8_E4M3", "F8_E5M2")  # types of numpy only with ml_dtypes


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of the names."""
    result = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        result.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        result.update(array.reshape(-1).view(np.uint8).data)
    return result.hexdigest()


def summed(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """The sum of arrays of one shape, in float64, one after another."""
    rest = iter(arrays)
    total = np.array(next(rest), np.float64)
    for array in rest:
        total += np.asarray(array, np.float64)
    return total


def mean(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of arrays, summed in float64 in their order, in the first's dtype."""
    return np.array(summed(arrays) / len(arrays), arrays[0].dtype)


def to_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file."""
    file = BytesIO()
    write(file, arrays)
    return file.getvalue()


class Sink(Protocol):
    """A destination of bytes."""

    def write(self, piece: bytes | memoryview, /) -> int:
        """Write all bytes."""
        ...


def shards(arrays: Mapping[str, np.ndarray], limit: int) -> list[Arrays]:
    """The arrays in groups of at most `limit` bytes; a larger array is a group."""
    found: list[Arrays] = [{}]
    held = 0
    for name, array in arrays.items():
        if found[-1] and held + array.nbytes > limit:
            found.append({})
            held = 0
        found[-1][name] = array
        held += array.nbytes
    return found


def write(
    file: Sink,
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file, one tensor after the other, without a second copy.

    `metadata` are texts in the header, as `{"format": "pt"}`, which transformers needs.
    """
    kinds = {name: Kind.of(name, array) for name, array in arrays.items()}
    file.write(_header(kinds, metadata)[0])
    for array in arrays.values():
        _write_data(file, array)


def _write_data(file: Sink, array: np.ndarray) -> None:
    # ascontiguousarray would turn a scalar into a vector; its bytes are the same.
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    for at in range(0, len(raw), PIECE):
        file.write(raw[at : at + PIECE])


class Kind(NamedTuple):
    """The dtype and the shape of a tensor in a header."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, name: str, array: np.ndarray) -> "Kind":
        """The kind of an array; `StateMismatch` if the format has no such type."""
        return cls(_dtype_name(name, array), np.shape(array))

    @property
    def bytes(self) -> int:
        """The bytes of its data."""
        return math.prod(self.shape) * _bytes_of(self.dtype)


class StreamedFile:
    """A file whose tensors may come in any order; each is written to its offset.

    `kinds` are those of all tensors. Leaving the context without an error checks that
    all tensors came, and waits until they are on the disk.
    """

    def __init__(
        self,
        path: str | Path,
        kinds: Mapping[str, Kind],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._kinds, self._left = kinds, set(kinds)
        head, self._places = _header(kinds, metadata)
        self._file = open(path, "wb")
        self._start = self._file.write(head)

    def put(self, name: str, array: np.ndarray) -> None:
        """Write one tensor; `StateMismatch` where it has another kind."""
        if (found := Kind.of(name, array)) != (wanted := self._kinds.get(name)):
            raise StateMismatch(f"{name}: is {found}, and {wanted} was announced")
        self._file.seek(self._start + self._places[name])
        _write_data(self._file, array)
        self._left.discard(name)

    def __enter__(self) -> "StreamedFile":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file:
            if kind is None and self._left:
                raise StateMismatch(f"no value of {min(self._left)} was written")
            self._file.flush()
            os.fsync(self._file.fileno())


def _header(
    kinds: Mapping[str, Kind], metadata: Mapping[str, str] | None
) -> tuple[bytes, dict[str, int]]:
    """The bytes in front of the data, and the offset of each tensor in the data."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    places, at = {}, 0
    for name, kind in kinds.items():
        places[name], end = at, at + kind.bytes
        header[name] = {
            "dtype": kind.dtype,
            "shape": list(kind.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = strict_json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _LENGTH.size) % ALIGNMENT)
    return _LENGTH.pack(len(text)) + text, places


def from_bytes(content: bytes, *, source: str = "safetensors") -> Arrays:
    """The arrays in a file's bytes, as copies; `source` names it in errors."""
    try:
        return {name: view.copy() for name, view in _views(memoryview(content))}
    except _INVALID as error:
        raise StateMismatch(
            f"{source}: not a valid safetensors file: {error}"
        ) from error


def read(path: str | Path) -> Arrays:
    """The arrays in a file, or in the files of an index `*.index.json`."""
    return {name: np.array(array) for name, array in mapped(path).items()}


def mapped(path: str | Path) -> Arrays:
    """As `read`, but the arrays are mapped, and read-only.

    Their values are those of the file at each access.
    """
    path = Path(path)
    if path.name.endswith(INDEX):
        found: Arrays = {}
        for shard in indexed(path):
            found |= mapped(shard)
        return found
    try:
        with outside.open_regular(path) as file:
            content = _mapping(file)
    except OSError as error:
        raise StateMismatch(f"{path}: cannot read it: {error.strerror}") from error
    try:
        return dict(_views(content))
    except _INVALID as error:
        raise StateMismatch(f"{path}: not a valid safetensors file: {error}") from error


def _mapping(file: BinaryIO) -> memoryview:
    size = os.fstat(file.fileno()).st_size  # an empty file cannot be mapped
    if not size:
        return memoryview(b"")
    return memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))


def indexed(path: Path) -> list[Path]:
    """The files of an index, in its folder; `StateMismatch` if it is damaged."""
    try:
        return outside.weight_files(path)
    except OSError as error:
        raise StateMismatch(f"{path}: cannot read it: {error.strerror}") from error
    except ValueError as error:
        raise StateMismatch(f"{path}: not a valid index: {error}") from error


def _dtype_name(name: str, array: np.ndarray) -> str:
    known = _NAMES.get(np.asarray(array).dtype.name)
    if known is None:
        raise StateMismatch(
            f"{name}: {np.asarray(array).dtype} does not fit in a safetensors file"
        )
    return known


def _bytes_of(name: str) -> int:
    return (
        1 if name.startswith("F8") else 2 if name == "BF16" else _dtype(name).itemsize
    )


def _dtype(name: str) -> np.dtype[Any]:
    if name in _NARROW:
        try:
            import ml_dtypes
        except ImportError as error:
            raise ValueError(
                f"{name} tensors need ml_dtypes (pip install ml_dtypes)"
            ) from error
        return np.dtype(getattr(ml_dtypes, _DTYPES[name]))
    return np.dtype(_DTYPES[name])


def _views(content: memoryview) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays as views of the bytes of a file."""
    (length,) = _LENGTH.unpack_from(content)
    start = _LENGTH.size + length
    if length > MAX_HEADER or start > len(content):
        raise ValueError(f"a header of {length} bytes in {len(content)}")
    header = strict_json.parse(bytes(content[_LENGTH.size : start]))
    header.pop("__metadata__", None)
    for name, entry in header.items():
        yield name, _array(name, entry, content[start:])


def _array(name: str, entry: Mapping[str, Any], data: memoryview) -> np.ndarray:
    dtype, shape = _dtype(entry["dtype"]), tuple(entry["shape"])
    first, last = entry["data_offsets"]
    if any(type(n) is not int or n < 0 for n in (*shape, first, last)):
        raise ValueError(f"{name}: negative or fractional sizes")
    if last > len(data) or last - first != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name}: {last - first} bytes for {dtype} {list(shape)}")
    return np.frombuffer(data[first:last], dtype).reshape(shape)
