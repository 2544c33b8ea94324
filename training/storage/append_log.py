"""Lines at the end of a run's files, whole or not at all to readers."""

import os
from io import FileIO
from pathlib import Path

from pcp.errors import RuntimeFault


def append(
    file: FileIO, line: bytes, *, path: Path, what: str, sync: bool = False
) -> None:
    """Write a line; with `sync`, wait until the disk has it.

    `RuntimeFault` where the disk takes no more: part of the line may be in the file.
    """
    try:
        _write(file, line)
        if sync:
            os.fsync(file.fileno())
    except OSError as error:
        raise RuntimeFault(
            f"{path}: cannot write the {what}: {error.strerror}; what was committed "
            "is safe: make room, then go on with --resume"
        ) from error


def _write(file: FileIO, content: bytes) -> None:
    while content:
        content = content[file.write(content) or 0 :]
