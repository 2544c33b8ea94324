"""The number that grows with every coordinator of a group, and who may count."""

import os
import stat
from pathlib import Path

import pytest

from pcp.errors import ConfigError
from pcp.runtime.group.coordinator import Coordinator
from pcp.runtime.group.incarnation import Incarnation


def test_every_start_counts(tmp_path: Path) -> None:
    numbers = []
    for _ in range(3):
        incarnation = Incarnation(tmp_path / "state")
        numbers.append(incarnation.number)
        incarnation.close()
    assert numbers == [0, 1, 2]
    assert {path.name for path in tmp_path.iterdir()} == {"state", "state.lock"}


def test_a_count_is_on_the_disk_with_its_name(tmp_path: Path, monkeypatch) -> None:
    """A renamed file may have its old content again after a loss of power."""
    told: list[tuple[bool, str]] = []
    plain, state = os.fsync, tmp_path / "state"

    def fsync(handle: int) -> None:
        folder = stat.S_ISDIR(os.fstat(handle).st_mode)
        told.append((folder, state.read_text() if state.exists() else ""))
        plain(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(2):
        Incarnation(state).close()
    assert told == [(False, ""), (True, "0\n"), (False, "0\n"), (True, "1\n")]


def test_one_coordinator_at_a_time(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with (
        Coordinator.listen("127.0.0.1:0", state=state),
        pytest.raises(ConfigError, match="another coordinator runs with it"),
    ):
        Coordinator.listen("127.0.0.1:0", state=state)
    with Coordinator.listen("127.0.0.1:0", state=state):
        assert state.read_text() == "1\n"  # who was refused did not count


def test_a_file_that_says_something_else_is_refused_and_let_go(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("not a number")
    for _ in range(2):
        with pytest.raises(ConfigError, match="invalid literal"):
            Coordinator.listen("127.0.0.1:0", state=state)
    state.write_text("41\n")
    with Coordinator.listen("127.0.0.1:0", state=state):
        assert state.read_text() == "42\n"


def test_a_full_disk_is_an_error_and_changes_nothing(
    tmp_path: Path, monkeypatch
) -> None:
    state = tmp_path / "state"
    state.write_text("7\n")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="No space left"):
        Coordinator.listen("127.0.0.1:0", state=state)
    assert state.read_text() == "7\n"


def test_without_a_file_the_clock_counts() -> None:
    first, second = Incarnation(None), Incarnation(None)
    assert 1_700_000_000_000 < first.number <= second.number
    assert not first.known
