"""The safetensors file, read back byte by byte as its specification says."""

import json
from pathlib import Path

import numpy as np
import pytest

from pcp.errors import IRError
from pcp.frontends.weights import write_weights


def _read(path: Path) -> dict[str, np.ndarray]:
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    assert start % 64 == 0
    dtypes = {"F32": "<f4", "I64": "<i8", "BOOL": "?", "F16": "<f2"}
    arrays = {}
    for name, entry in json.loads(content[8:start]).items():
        first, last = (start + offset for offset in entry["data_offsets"])
        flat = np.frombuffer(content[first:last], dtypes[entry["dtype"]])
        arrays[name] = flat.reshape(entry["shape"])
    assert last == len(content)
    return arrays


def test_arrays_come_back(tmp_path: Path) -> None:
    arrays = {
        "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "scalar": np.array(7, np.int64),
        "mask": np.array([True, False, True]),
        "half": np.array([[0.5, -2]], np.float16),
    }
    write_weights(tmp_path / "w.safetensors", arrays)
    found = _read(tmp_path / "w.safetensors")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_dtype_it_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IRError, match="x: safetensors has no dtype complex64"):
        write_weights(tmp_path / "w", {"x": np.ones(2, np.complex64)})
