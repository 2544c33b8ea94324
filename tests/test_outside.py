"""Files that are none, too large, too deep or never end: errors of ours, and soon."""

import io
import json
import os
import zipfile

import numpy as np
import pytest
from helpers.worlds.training_runs import experiment as on_disk

from pcp import outside
from pcp.bundle import Bundle
from pcp.compiler.sharding_file import Rules
from pcp.errors import BundleError, ConfigError, PcpError, StateMismatch
from pcp.training.config import experiment_file
from pcp.training.data.dataset import Source, token_inputs
from pcp.training.data.formats import arrays
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import ledger, safetensors_io
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.control_file import read_control

DEEP = b"[" * 100_000 + b"]" * 100_000
READERS = {
    "bundle": (Bundle.read, BundleError),
    "experiment": (experiment_file.load, ConfigError),
    "sharding file": (Rules.read, ConfigError),
    "ledger": (ledger.read, PcpError),
    "safetensors": (safetensors_io.read, StateMismatch),
    "index": (lambda p: safetensors_io.indexed(p), StateMismatch),
}


def pipe(path):
    """A named pipe that nobody writes to."""
    os.mkfifo(path)


def deep(path):
    """JSON at the end of which no parser comes, behind a header where one is asked."""
    head = len(DEEP).to_bytes(8, "little") if path.suffix == ".safetensors" else b""
    path.write_bytes(head + DEEP + b"\n")


@pytest.mark.parametrize("made", [pipe, deep, os.mkdir])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_such_file_is_an_error_of_ours(tmp_path, made, reader):
    read, error = READERS[reader]
    path = tmp_path / f"x.{reader}"
    made(path)
    with pytest.raises(error, match=r"x\."):
        read(path)


def test_the_control_file_is_one_of_them(tmp_path):
    pipe(tmp_path / "control.json")
    with pytest.raises(ConfigError, match="no regular file"):
        read_control(tmp_path)


def test_too_large_is_not_read(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    with pytest.raises(OSError, match="5 bytes; 4 are taken"):
        outside.read_bytes(tmp_path / "x", 4)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"a": "../b.safetensors"}, "in another folder"),
        ({"a": "/b.safetensors"}, "in another folder"),
        (["b.safetensors"], "no weight_map"),
    ],
)
def test_an_index_names_what_lies_beside_it(tmp_path, said, why):
    index = tmp_path / "x.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "b.st", "c": "b.st"}}))
    assert outside.weight_files(index) == [tmp_path / "b.st"]
    index.write_text(json.dumps({"weight_map": said}))
    with pytest.raises(ValueError, match=why):
        outside.weight_files(index)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "state.json").write_bytes(DEEP),
        lambda folder: (folder / checkpoints.SUMS).write_bytes(DEEP),
        lambda folder: _replaced(folder / "state.json", pipe),
        lambda folder: _replaced(folder / checkpoints.SUMS, pipe),
        lambda folder: _replaced(folder / "parameters.safetensors", pipe),
        lambda folder: _sums(folder, {"../../x": {"sha256": "0" * 64}}),
        lambda folder: _sums(folder, {"state.json": {"sha256": 3}}),
    ],
)
def test_the_checkpoint_before_a_spoilt_one_is_taken(tmp_path, spoil):
    array = {"w": np.ones(3, np.float32)}
    for number in (1, 2):
        saved = Checkpoint(number, array, array, [array])
        folder = checkpoints.save(tmp_path, saved)
    spoil(folder)
    found, refused = checkpoints.newest(tmp_path)
    assert found is not None
    assert found.round == 1
    assert len(refused) == 1


def _replaced(path, made):
    path.unlink()
    made(path)


def _sums(folder, more):
    path = folder / checkpoints.SUMS
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


def test_a_checkpoint_whose_reading_breaks_is_skipped(tmp_path, monkeypatch):
    array = {"w": np.ones(3, np.float32)}
    for number in (1, 2):
        checkpoints.save(tmp_path, Checkpoint(number, array, array, [array]))

    def breaks(checkpoint):
        if checkpoint.round == 2:
            raise MemoryError("no room")

    found, refused = checkpoints.newest(tmp_path, check=breaks)
    assert found is not None
    assert found.round == 1
    assert "MemoryError: no room" in refused[0]


def header(shape, dtype="<f4"):
    """Of a `.npy` file that says it has this shape."""
    file = io.BytesIO()
    said = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, said)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (header((1 << 40, 1 << 20)), "bytes when unpacked"),
        (header((3, 2)) + b"1234", "ends before its array does"),
        (header((1 << 62, 1 << 62)), "bytes when unpacked"),
        (b"\x93NUMPY\x01\x00\x05\x00{'a':", "no array of numpy"),
        (b"nothing of the kind", "no array of numpy"),
    ],
)
def test_a_bomb_among_compressed_arrays_is_not_unpacked(tmp_path, content, said):
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ids.npy", content)
    with pytest.raises(ConfigError, match=said):
        arrays.npz(source(path))


def test_what_is_left_of_a_damaged_archive_is_an_error_of_ours(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, ids=np.random.default_rng(0).integers(0, 9, (50, 8)))
    whole = path.read_bytes()
    draw = np.random.default_rng(1)
    for _ in range(300):
        content = bytearray(whole)
        for at in draw.integers(0, len(whole), 3):
            content[at] = draw.integers(256)
        path.write_bytes(content)
        try:
            arrays.npz(source(path))
        except PcpError:
            pass


def source(path):
    """A dataset at this path."""
    made = on_disk(path.parent, data_path=str(path))
    return Source(str(path), made, token_inputs(4, 8))
