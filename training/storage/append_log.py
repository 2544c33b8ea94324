"""Appending lines to a run's files; readers see whole lines only."""

import errno
import os
from io import FileIO
from pathlib import Path

from pcp.errors import RuntimeFault

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(RuntimeFault):
    """The disk has no room for a line; it may have some later."""


def append(
    file: FileIO, line: bytes, *, path: Path, what: str, sync: bool = False
) -> None:
    """Write a line; with `sync`, wait until it is on the disk.

    `DiskFull` where there is no room, `RuntimeFault` for other errors of the disk: part
    of the line may be in the file then.
    """
    try:
        _write(file, line)
        if sync:
            os.fsync(file.fileno())
    except OSError as error:
        fault = DiskFull if error.errno in _FULL else RuntimeFault
        raise fault(
            f"{path}: cannot write the {what}: {error.strerror}; what was committed "
            "is safe: make room, then go on with --resume"
        ) from error


def _write(file: FileIO, content: bytes) -> None:
    while content:
        content = content[file.write(content) or 0 :]
