"""Named arrays on disk, in the safetensors format, and their digest.

The format: the length of a JSON header (8 bytes, little-endian), the header
(name -> dtype, shape, and the first and last byte of the data), the data. The
header is padded with spaces so that data starts at a multiple of 64 bytes,
which lets a runtime map it without a copy. Nothing in a file is executed, and
nothing is believed before it was compared with the file's size.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcp import strict_json
from pcp.errors import StateMismatch

Arrays = dict[str, np.ndarray]

ALIGNMENT = 64
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
_NARROW = ("BF16", "F8_E4M3", "F8_E5M2")  # numpy knows them only with ml_dtypes


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
    """Their mean, added up in float64 in their order, in the dtype of the first."""
    return np.array(summed(arrays) / len(arrays), arrays[0].dtype)


def to_bytes(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The bytes of a safetensors file."""
    header, chunks, at = {}, [], 0
    for name, array in arrays.items():
        # ascontiguousarray would turn a scalar into a vector.
        raw = np.asarray(array).tobytes()
        header[name] = {
            "dtype": _dtype_name(name, array),
            "shape": list(np.shape(array)),
            "data_offsets": [at, at + len(raw)],
        }
        chunks.append(raw)
        at += len(raw)
    text = strict_json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _LENGTH.size) % ALIGNMENT)
    return b"".join([_LENGTH.pack(len(text)), text, *chunks])


def from_bytes(content: bytes, *, source: str = "safetensors") -> Arrays:
    """The arrays in a file's bytes, as copies; `source` names it in errors."""
    try:
        return _parse(content)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise StateMismatch(
            f"{source}: not a valid safetensors file: {error}"
        ) from error


def read(path: str | Path) -> Arrays:
    """The arrays in a file."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise StateMismatch(f"{path}: cannot read it: {error.strerror}") from error
    return from_bytes(content, source=str(path))


def _dtype_name(name: str, array: np.ndarray) -> str:
    known = _NAMES.get(np.asarray(array).dtype.name)
    if known is None:
        raise StateMismatch(
            f"{name}: {np.asarray(array).dtype} does not fit in a safetensors file"
        )
    return known


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


def _parse(content: bytes) -> Arrays:
    (length,) = _LENGTH.unpack_from(content)
    start = _LENGTH.size + length
    if length > MAX_HEADER or start > len(content):
        raise ValueError(f"a header of {length} bytes in {len(content)}")
    header = json.loads(content[_LENGTH.size : start])
    header.pop("__metadata__", None)
    data = memoryview(content)[start:]
    return {name: _array(name, entry, data) for name, entry in header.items()}


def _array(name: str, entry: Mapping[str, Any], data: memoryview) -> np.ndarray:
    dtype, shape = _dtype(entry["dtype"]), tuple(entry["shape"])
    first, last = entry["data_offsets"]
    if any(type(n) is not int or n < 0 for n in (*shape, first, last)):
        raise ValueError(f"{name}: negative or fractional sizes")
    if last > len(data) or last - first != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name}: {last - first} bytes for {dtype} {list(shape)}")
    return np.frombuffer(data[first:last], dtype).reshape(shape).copy()
