"""The incarnation of a coordinator: a number that grows with every start.

A file has the number, which one coordinator at a time locks: two coordinators of one
group at once could decide one operation differently. Without a file the number is the
clock's.
"""

import time
from pathlib import Path
from typing import IO

from pcp import whole_file
from pcp.errors import ConfigError
from pcp.runtime.group.file_lock import hold


class Incarnation:
    """This coordinator's number, and its lock of the file."""

    def __init__(self, path: Path | None) -> None:
        """ConfigError when another coordinator has the file, or it has no number."""
        self._lock: IO[str] | None = None
        self.known = path is not None
        """Whether the number is counted: 0 is then the first coordinator."""
        if path is None:
            self.number = time.time_ns() // 1_000_000
            return
        self._lock = _locked(path)
        try:
            self.number = _counted(path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the lock of the file."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _locked(path: Path) -> IO[str]:
    lock_path = path.with_name(path.name + ".lock")
    try:
        lock = open(lock_path, "a")
    except OSError as error:
        raise ConfigError(f"the coordinator's state {path}: {error}") from error
    hold(
        lock,
        f"the coordinator's state {path}: another coordinator runs with it; stop "
        "that one first, or give this one a state of its own",
    )
    return lock


def _counted(path: Path) -> int:
    """One more than the file's number, written to the disk before it is used."""
    try:
        count = int(path.read_text()) + 1 if path.exists() else 0
        with whole_file.replacing(path, durable=True) as file:
            file.write(b"%d\n" % count)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the coordinator's state {path}: {error}") from error
    return count
