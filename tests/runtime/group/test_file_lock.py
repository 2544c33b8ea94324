"""One process at a time holds a file."""

import errno
import fcntl
import os

import pytest

from pcp.errors import ConfigError
from pcp.runtime.group.file_lock import hold


def test_the_second_is_told_and_comes_after_the_first(tmp_path) -> None:
    path = tmp_path / "state"
    first, second = open(path, "a"), open(path, "a")
    hold(first, "taken")
    with pytest.raises(ConfigError, match=r"^taken$"):
        hold(second, "taken")
    assert second.closed
    first.close()
    with open(path, "a") as third:
        hold(third, "taken")


def test_a_file_system_without_locks_is_not_taken_for_another_process(
    tmp_path, monkeypatch
) -> None:
    def unlockable(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unlockable)
    with open(tmp_path / "state", "a") as file:
        with pytest.raises(ConfigError, match="state: cannot be locked: No locks"):
            hold(file, "taken")
        assert file.closed
