"""Lines at the end of a run's files, whole or not at all to readers."""

import errno
import os
from io import FileIO
from pathlib import Path

from pcp.errors import RuntimeFault

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFull(RuntimeFault):
    """There is no room for a line; there may be, later."""


def append(
    file: FileIO, line: bytes, *, path: Path, what: str, sync: bool = False
) -> None:
    """Write a line; with `sync`, wait until the disk has it.

    `DiskFull` where there is no room, `RuntimeFault` where the disk refuses otherwise:
    part of the line may be in the file.
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
