"""What survives the machine's end: names, besides what files hold."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Have on the disk which files a folder has: what was made or renamed in it.

    `OSError` where the file system cannot.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
