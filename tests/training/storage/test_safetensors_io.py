"""Files of tensors: in pieces, in any order, over several files; read by others."""

import json
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pcp.errors import StateMismatch
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import safetensors_io
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.safetensors_io import Kind, StreamedFile

MIB = 1 << 20
ARRAYS = {
    "scalar": np.array(7, np.int32),
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "turned": np.arange(6, dtype=np.float64).reshape(2, 3).T,
    "narrow": np.ones((3,), ml_dtypes.bfloat16),
}


def _written(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    with open(path, "wb") as file:
        safetensors_io.write(file, arrays, {"format": "pt"})
    return path


def test_the_package_safetensors_reads_the_same(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    found = package.load_file(_written(tmp_path / "a.safetensors", ARRAYS))
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)


def test_tensors_that_come_in_another_order_give_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "b.safetensors"
    kinds = {name: Kind.of(name, array) for name, array in ARRAYS.items()}
    with StreamedFile(path, kinds, {"format": "pt"}) as file:
        for name, array in reversed(ARRAYS.items()):
            file.put(name, array)
    assert (
        path.read_bytes() == _written(tmp_path / "a.safetensors", ARRAYS).read_bytes()
    )


def test_a_tensor_that_does_not_come_or_is_another_is_told(tmp_path: Path) -> None:
    kinds = {"a": Kind("F32", (2,))}
    with (
        pytest.raises(StateMismatch, match="no value of a"),
        StreamedFile(tmp_path / "a", kinds),
    ):
        pass
    with (
        pytest.raises(StateMismatch, match="a: is "),
        StreamedFile(tmp_path / "a", kinds) as file,
    ):
        file.put("a", np.zeros(3, np.float32))


def test_memory_for_a_file_is_that_of_its_tensors(tmp_path: Path) -> None:
    arrays = {name: np.ones(8 * MIB, np.float32) for name in "ab"}
    tracemalloc.start()
    path = _written(tmp_path / "a.safetensors", arrays)
    writing = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    found = safetensors_io.read(path)
    reading = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(a.nbytes for a in found.values()) == 64 * MIB
    assert writing < MIB
    assert reading < 65 * MIB


@pytest.fixture
def sharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Checkpoint]:
    """A checkpoint of files of at most two arrays."""
    monkeypatch.setattr(checkpoints, "SHARD_BYTES", 32)
    parameters = {name: np.full(4, i, np.float32) for i, name in enumerate("abcde")}
    saved = Checkpoint(3, parameters, {}, [{"m": np.ones(3, np.float32)}])
    return checkpoints.save(tmp_path, saved), saved


def test_many_tensors_lie_in_several_files(sharded: tuple[Path, Checkpoint]) -> None:
    folder, saved = sharded
    index = folder / "parameters.safetensors.index.json"
    files = set(json.loads(index.read_text())["weight_map"].values())
    assert files == {f"parameters-0000{i}-of-00003.safetensors" for i in (1, 2, 3)}
    for found in (checkpoints.load(folder).parameters, safetensors_io.read(index)):
        assert found.keys() == saved.parameters.keys()
        assert all(np.array_equal(found[k], v) for k, v in saved.parameters.items())


def test_one_of_several_files_is_missed(sharded: tuple[Path, Checkpoint]) -> None:
    folder, _ = sharded
    lost = folder / "parameters-00002-of-00003.safetensors"
    lost.unlink()
    with pytest.raises(StateMismatch, match=r"00002-of-00003.* cannot read it"):
        checkpoints.load(folder)


@pytest.mark.parametrize("name", ["../a.safetensors", "/a.safetensors"])
def test_an_index_names_files_beside_it(tmp_path: Path, name: str) -> None:
    index = tmp_path / "a.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(StateMismatch, match="names a file in another folder"):
        safetensors_io.read(index)
