"""Files are there whole or not at all, and their names on the disk when it is said."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pcp.whole_file import replacing, sync_folder


def test_the_folder_is_synced_and_closed(tmp_path: Path, monkeypatch) -> None:
    synced = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append((handle, os.fstat(handle).st_ino))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    sync_folder(tmp_path)
    ((handle, inode),) = synced
    assert inode == tmp_path.stat().st_ino
    assert stat.S_ISDIR(os.stat(tmp_path).st_mode)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "none")


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_text("old")
    with pytest.raises(TypeError), replacing(path) as file:
        file.write([file.write(b"half of the ne")])  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert path.read_text() == "old"
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_its_mode_is_that_of_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("all may read it")
    with replacing(path, mode=0o600) as file:
        file.write(b"secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_is_durable_is_on_the_disk_before_its_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *a, real=real, name=name: (done.append(name), real(*a))
        )
    for durable in (False, True):
        with replacing(tmp_path / "x", durable=durable):
            pass
    assert done == ["replace", "fsync", "replace", "fsync"]


KILLED = """
import os, signal, sys
from pcp.whole_file import replacing
with replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_in_between_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "state"
    path.write_text("old")
    words = [sys.executable, "-c", KILLED, str(path)]
    done = subprocess.run(words, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.glob("*") if not p.name.startswith(".")] == [
        "state"
    ]
