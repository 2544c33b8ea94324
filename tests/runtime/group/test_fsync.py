"""Names in folders are on the disk when that is said."""

import os
import stat
from pathlib import Path

import pytest

from pcp.runtime.group.fsync import sync_folder


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
