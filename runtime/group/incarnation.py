"""How many coordinators a group has had: a number that grows with every start.

It stands in a file, which one coordinator at a time holds: two that were alive
at once for one group could decide one operation differently. Without a file the
clock has to do.
"""

import os
import time
from pathlib import Path
from typing import IO

from pcp.errors import ConfigError
from pcp.runtime.group.file_lock import hold
from pcp.runtime.group.fsync import sync_folder


class Incarnation:
    """This coordinator's number, and its hold on the file."""

    def __init__(self, path: Path | None) -> None:
        """ConfigError when another coordinator has the file, or it is no good."""
        self._lock: IO[str] | None = None
        self.known = path is not None
        """Whether the number says if this coordinator is the first."""
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
        """Let the next one have the file."""
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
    """One more than the file says, which is on the disk before anybody hears it."""
    scratch = path.with_name(path.name + ".new")
    try:
        count = int(path.read_text()) + 1 if path.exists() else 0
        with open(scratch, "w") as file:
            file.write(f"{count}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
        sync_folder(path.parent)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the coordinator's state {path}: {error}") from error
    return count
