"""Checkpoints and tensor files: whole or refused."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import ml_dtypes
import numpy as np
import pytest
from helpers.present import present
from helpers.servers.processes import Processes

from pcp.errors import StateMismatch
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import safetensors_io
from pcp.training.storage.checkpoint import Checkpoint


def _checkpoint(number: int) -> Checkpoint:
    rng = np.random.default_rng(number)
    return Checkpoint(
        round=number,
        parameters={"w": rng.normal(size=(3, 4)).astype(np.float32)},
        outer={"w": np.zeros((3, 4), np.float32)},
        workers=[{"m": np.ones(3, np.float32), "step": np.array(7, np.int32)}],
        info={"digest": "d", "tokenizer": {"kind": "byte"}},
    )


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int64, bool]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_tensors_survive_a_file(dtype, shape):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    back = safetensors_io.from_bytes(safetensors_io.to_bytes({"a": array, "b": array}))
    assert list(back) == ["a", "b"]
    assert back["a"].dtype == array.dtype
    assert back["a"].shape == array.shape
    assert np.array_equal(back["b"], array)


def test_data_begins_at_a_multiple_of_64_bytes():
    for name in ("a", "ab", "abc" * 20):
        raw = safetensors_io.to_bytes({name: np.ones(3, np.float32)})
        assert (8 + int.from_bytes(raw[:8], "little")) % 64 == 0


def test_lengths_are_not_believed():
    raw = safetensors_io.to_bytes({"a": np.ones(3, np.float32)})
    for bad in (b"\xff" * 8 + raw[8:], raw[:-1], b"", raw.replace(b"[3]", b"[4]")):
        with pytest.raises(StateMismatch, match="not a valid"):
            safetensors_io.from_bytes(bad)


def test_the_digest_sees_names_shapes_and_values():
    base = {"a": np.zeros((2, 3), np.float32)}
    others = [
        {"b": np.zeros((2, 3), np.float32)},
        {"a": np.zeros((3, 2), np.float32)},
        {"a": np.zeros((2, 3), np.int32)},
        {"a": np.full((2, 3), -0.0, np.float32)},
    ]
    digests = {safetensors_io.digest(arrays) for arrays in [base, *others]}
    assert len(digests) == 5


def test_a_checkpoint_comes_back(tmp_path):
    saved = _checkpoint(3)
    loaded = checkpoints.load(checkpoints.save(tmp_path, saved))
    assert np.array_equal(loaded.parameters["w"], saved.parameters["w"])
    assert loaded.workers[0]["step"] == 7
    assert loaded.workers[0]["step"].shape == ()
    assert loaded.info == saved.info
    assert loaded.round == 3


def test_the_newest_are_kept(tmp_path):
    for number in range(1, 6):
        checkpoints.save(tmp_path, _checkpoint(number), keep=2)
    assert [f.name[-1] for f in checkpoints.folders(tmp_path)] == ["5", "4"]


@pytest.mark.parametrize(
    "name", ["parameters.safetensors", "worker_0.safetensors", "SHA256SUMS.json"]
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_taken(tmp_path, name):
    checkpoints.save(tmp_path, _checkpoint(1))
    path = checkpoints.save(tmp_path, _checkpoint(2)) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    found, refused = _newest(tmp_path)
    assert found.round == 1
    assert len(refused) == 1
    assert "round_00000002" in refused[0]
    path.unlink()
    assert _newest(tmp_path)[0].round == 1


def test_not_after_a_given_round(tmp_path):
    for number in (1, 2, 3):
        checkpoints.save(tmp_path, _checkpoint(number))
    assert _newest(tmp_path, at_most=2)[0].round == 2
    assert checkpoints.newest(tmp_path, at_most=0)[0] is None


def _newest(*arguments, **options) -> tuple[Checkpoint, list[str]]:
    """The newest valid checkpoint, which is there, and what was refused."""
    found, refused = checkpoints.newest(*arguments, **options)
    return present(found), refused


SAVE_FOREVER = """
import sys, numpy as np
from pcp.training.storage import checkpoint as c
for n in range(1, 10**6):
    w = {f"w{i}": np.full(50000, n, np.float32) for i in range(8)}
    c.save(sys.argv[1], c.Checkpoint(n, w, w))
    print(n, flush=True)
"""


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "delay",
    [0.013, pytest.param(0.0, marks=SLOW), pytest.param(0.031, marks=SLOW)],
)
def test_kill_while_saving_leaves_only_whole_checkpoints(tmp_path, delay):
    command = [sys.executable, "-c", SAVE_FOREVER, str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        saved = 0
        while saved < 3:
            saved = int(present(child.stdout).readline())
        time.sleep(delay)
        os.kill(child.pid, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()
        present(child.stdout).close()
    found, refused = _newest(tmp_path)
    assert refused == []
    assert found.round >= saved
    assert all((a == found.round).all() for a in found.parameters.values())


@pytest.mark.parametrize("keep", [1, pytest.param(2, marks=SLOW)])
def test_a_kill_at_any_step_leaves_the_last_good_one(keep):
    """Round 2 is written, and then again with other values, as after a rewind."""
    with Processes() as started:
        child = started.start("helpers.faults.killed_save", keep)
        assert child.wait(60) == 0, child.text
    found = [json.loads(line) for line in child.lines]
    again = [point for point in found if point["again"]]
    assert len(again) > len(found) / 2 > 10  # the second also clears the first away
    for point in found:
        assert point["refused"] == [], point
        before = [2, 2] if point["again"] else [1, 1]
        after = [2, 3] if point["again"] else [2, 2]
        assert point["found"] in (before, after), point
        assert point["next"] == [3, 3], point
        assert point["left"] <= keep, point
    outcomes = {(p["again"], tuple(p["found"])) for p in found}
    assert len(outcomes) == 4, "kills on both sides of the rename, both times"


def test_more_than_are_kept_make_room_for_the_new_one(tmp_path, monkeypatch):
    for number in range(1, 6):
        checkpoints.save(tmp_path, _checkpoint(number), keep=9)

    def full(path, content):
        raise OSError("no room")

    monkeypatch.setattr(checkpoints, "_write", full)
    with pytest.raises(OSError, match="no room"):
        checkpoints.save(tmp_path, _checkpoint(6), keep=2)
    assert [f.name[-1] for f in checkpoints.folders(tmp_path)] == ["5", "4"]


def test_what_a_rewind_left_behind_is_not_kept_for_what_is_new(tmp_path):
    """A damaged later round does not push the new one out."""
    damaged = checkpoints.save(tmp_path, _checkpoint(8), keep=1)
    (damaged / "outer.safetensors").write_bytes(b"damaged")
    path = checkpoints.save(tmp_path, _checkpoint(5), keep=1)
    assert path.exists()
    found, refused = _newest(tmp_path)
    assert found.round == 5
    assert "SHA-256" in refused[0]


def test_a_whole_checkpoint_of_another_history_is_passed_over(tmp_path):
    for number in (1, 2):
        checkpoints.save(tmp_path, _checkpoint(number))

    def check(checkpoint):
        if checkpoint.round == 2:
            raise StateMismatch("round 2 is not the committed state")

    found, refused = _newest(tmp_path, None, check)
    assert found.round == 1
    assert refused == [
        "round 2 is not the committed state; trying the checkpoint before it"
    ]


@pytest.mark.parametrize("state", ["[]", '{"round": "3"}', '{"round": 3}', "{"])
def test_a_state_that_names_no_round_is_refused(tmp_path, state):
    path = checkpoints.save(tmp_path, _checkpoint(3))
    raw = json.loads((path / "state.json").read_text())
    content = state.encode()
    if state.startswith('{"'):
        bad = {k: v for k, v in raw.items() if k not in ("round", "workers")}
        content = json.dumps(bad | json.loads(state)).encode()
    (path / "state.json").write_bytes(content)
    sums = json.loads((path / "SHA256SUMS.json").read_text())
    sums["state.json"]["sha256"] = hashlib.sha256(content).hexdigest()
    (path / "SHA256SUMS.json").write_text(json.dumps(sums))
    with pytest.raises(StateMismatch, match=r"state\.json: (damaged|names no)"):
        checkpoints.load(path)


def test_a_full_disk_leaves_the_last_good_one_and_nothing_of_the_new(tmp_path):
    """The limit on a file's size stands for the disk's: the same error at a write."""
    with Processes() as started:
        child = started.start("helpers.faults.full_disk", tmp_path)
        assert child.wait(60) == 0, child.text
    assert child.lines == ["File too large", "saved round_00000003"]
    found, refused = _newest(tmp_path)
    assert (found.round, refused) == (3, [])
    names = sorted(f.name for f in (tmp_path / "checkpoints").iterdir())
    assert names == ["round_00000001", "round_00000003"]
