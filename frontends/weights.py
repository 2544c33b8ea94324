"""Named arrays in the safetensors format, written without its library.

The file is: 8 bytes of header length (little endian), the header (JSON: name ->
dtype, shape, byte range), the data. The header is padded with spaces so that
the data starts at a multiple of 64 bytes: a mapped file then needs no copy.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from pcp.errors import IRError

ALIGNMENT = 64

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


def write_weights(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `arrays` in order; `IRError` for a dtype the format does not have."""
    header: dict[str, object] = {}
    offset = 0
    for name, array in arrays.items():
        if array.dtype.name not in _DTYPES:
            raise IRError(f"{name}: safetensors has no dtype {array.dtype}")
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    with Path(path).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            file.write(array.tobytes())
