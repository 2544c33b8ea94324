"""A file that one process at a time holds; the kernel lets go when it dies."""

import fcntl
from typing import IO

from pcp.errors import ConfigError


def hold(file: IO, taken: str) -> None:
    """Hold an open file until it is closed.

    Otherwise closes it and raises ConfigError: `taken` where another process holds
    it, or why it cannot be held at all (some network file systems have no locks).
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(taken) from error
    except OSError as error:
        file.close()
        raise ConfigError(f"{file.name}: cannot be locked: {error.strerror}") from error
