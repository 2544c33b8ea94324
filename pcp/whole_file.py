"""Files that are there whole or not at all, whatever happens while they are written.

They are written under a hidden name in their folder, and take their own name at the
end. A process that is killed in between leaves the hidden file, which nobody reads.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(
    path: str | Path, *, mode: int = 0o666, durable: bool = False
) -> Iterator[BinaryIO]:
    """A file to write in the block, which is `path` behind it.

    An error in the block, or `OSError` of the disk, leaves what was there. `mode` is
    for a new file, less the process's umask. With `durable` the content and the name
    outlive a crash of the machine from then on.
    """
    path = Path(path)
    name = f".{path.name}.{os.getpid()}-{threading.get_native_id()}"
    hidden = path.with_name(name)
    hidden.unlink(missing_ok=True)  # of a process that had our number
    descriptor = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(hidden, path)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Write a folder's entries to the disk: files that were made or renamed in it.

    `OSError` where the file system cannot.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
