"""Names of files that survive a crash of the machine, besides their contents."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk: files that were made or renamed in it.

    `OSError` where the file system cannot.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
