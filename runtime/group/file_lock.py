"""File locks: one process at a time has a file; its death frees the lock."""

import fcntl
from typing import IO

from pcp.errors import ConfigError


def hold(file: IO, taken: str) -> None:
    """Lock an open file until it is closed.

    Otherwise closes it and raises ConfigError: `taken` where another process has the
    lock, or the reason of the system (some network file systems have no locks).
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(taken) from error
    except OSError as error:
        file.close()
        raise ConfigError(f"{file.name}: cannot be locked: {error.strerror}") from error
