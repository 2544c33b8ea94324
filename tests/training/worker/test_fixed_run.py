"""The rounds of a fixed world, its batches, and its checkpoints in one process."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pcp.errors import ConfigError, StateMismatch
from pcp.training.storage import checkpoint
from pcp.training.storage.island_parts import WHOLE
from pcp.training.worker.fixed_checkpoints import FixedCheckpoints
from pcp.training.worker.fixed_run import FixedRounds

FACTS = {"bundle": "b" * 64, "inputs": "random:0", "seed": 3, "tau": 5, "workers": 1}


class Alone:
    """A world of one member."""

    rank, world_size = 0, 1

    def all_gather(self, array: np.ndarray, tag: str) -> np.ndarray:
        return array


class Halves(Alone):
    """Two members, of which the other found the step `theirs`."""

    def __init__(self, theirs: int) -> None:
        self._theirs = theirs

    def all_gather(self, array: np.ndarray, tag: str) -> np.ndarray:
        return np.array([[array[0]], [self._theirs]])


@pytest.mark.parametrize(
    ("rounds", "done", "ends", "saved"),
    [
        (FixedRounds(10), 0, [10], []),
        (FixedRounds(10, tau=5), 0, [5, 10], []),
        (FixedRounds(10, tau=5, every=5), 5, [10], [10]),
        (FixedRounds(12, tau=2, every=8), 0, [2, 4, 6, 8, 10, 12], [8, 12]),
        (FixedRounds(10, every=4), 0, [4, 8, 10], [4, 8, 10]),
        (FixedRounds(10, every=4), 3, [4, 8, 10], [4, 8, 10]),
        (FixedRounds(10, every=4), 10, [], []),
    ],
)
def test_steps_are_cut_into_rounds(
    rounds: FixedRounds, done: int, ends: list[int], saved: list[int]
) -> None:
    found = list(rounds.after(done))
    assert [end for _, end in found] == ends
    assert [begin for begin, _ in found] == ([done, *ends][: len(ends)])
    assert [end for end in ends if rounds.saves(end)] == saved


def _kept(folder: Path, world: Any = None, **facts: Any) -> FixedCheckpoints:
    return FixedCheckpoints(folder, FACTS | facts, WHOLE, world or Alone())


def _save(folder: Path, number: int) -> None:
    state = {
        "parameter/w": np.full(3, number, np.float32),
        "outer/momentum.w": np.arange(3, dtype=np.float32),
        "inner/0/step": np.array(5 * number),
        "frozen/table": np.ones(2),
    }
    losses = np.array([1 / 3, np.nan, np.inf, -0.0, 5e-39], np.float32)
    _kept(folder).save(number, state, np.tile(losses, number))


def test_a_checkpoint_comes_back_bit_by_bit(tmp_path: Path) -> None:
    """Frozen tensors stay away: they come with the model."""
    for number in range(1, 5):
        _save(tmp_path, number)
    assert len(checkpoint.folders(tmp_path)) == 3
    found = _kept(tmp_path).newest(20)
    assert found is not None
    assert set(found.snapshot) == {"parameter/w", "outer/momentum.w", "inner/0/step"}
    np.testing.assert_array_equal(found.snapshot["parameter/w"], np.full(3, 4.0))
    (losses,) = found.losses
    given = np.array([1 / 3, np.nan, np.inf, -0.0, 5e-39], np.float32)
    assert losses.dtype == np.float32
    assert losses.tobytes() == np.tile(given, 4).tobytes()


def test_without_one_a_run_begins(tmp_path: Path) -> None:
    assert _kept(tmp_path / "nowhere").newest(20) is None


def test_a_damaged_one_gives_way_to_the_one_before(tmp_path: Path) -> None:
    for number in (1, 2):
        _save(tmp_path, number)
    file = tmp_path / "checkpoints" / "round_00000002" / "parameters.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    found = _kept(tmp_path).newest(20)
    assert found is not None
    assert len(found.losses[0]) == 5
    before = tmp_path / "checkpoints" / "round_00000001" / "parameters.safetensors"
    before.write_bytes(b"?")
    with pytest.raises(StateMismatch, match="SHA-256"):
        _kept(tmp_path).newest(20)


@pytest.mark.parametrize(
    ("facts", "steps", "says"),
    [
        ({"seed": 4}, 20, "another seed (3, and now 4)"),
        ({"inputs": "random:1"}, 20, "another inputs"),
        ({"bundle": "c" * 64}, 20, "another bundle"),
        ({}, 9, "holds step 10, beyond --steps 9"),
    ],
)
def test_the_state_of_another_run_is_refused(
    facts: dict[str, Any], steps: int, says: str, tmp_path: Path
) -> None:
    _save(tmp_path, 2)
    with pytest.raises(ConfigError, match=re.escape(says)):
        _kept(tmp_path, **facts).newest(steps)


def test_members_with_other_checkpoints_are_refused(tmp_path: Path) -> None:
    """On machines that do not share the folder, one may have none."""
    _save(tmp_path, 2)
    assert _kept(tmp_path, Halves(10)).newest(20) is not None
    for world, folder in ((Halves(5), tmp_path), (Halves(10), tmp_path / "none")):
        with pytest.raises(ConfigError, match="not all members see the same"):
            _kept(folder, world).newest(20)


def test_a_folder_has_one_run_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "kept"
    with (
        _kept(folder).alone(),
        pytest.raises(ConfigError, match="another run keeps its checkpoints there"),
    ):
        _kept(folder).alone()
    _kept(folder).alone().close()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file: cannot be written: File exists"):
        _kept(tmp_path / "file").alone()


def test_the_state_of_a_run_with_a_shepherd_has_no_losses(tmp_path: Path) -> None:
    made = checkpoint.Checkpoint(1, {"w": np.ones(2)}, {}, workers=[{}])
    checkpoint.save(tmp_path, made)
    with pytest.raises(StateMismatch, match="is not of `pcp run --steps`"):
        _kept(tmp_path).newest(20)
