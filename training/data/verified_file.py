"""A file whose bytes are checked against its digest when they are first read."""

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np

from pcp.errors import ConfigError
from pcp.training.data.digest import LEAF, FileDigest, changed


class VerifiedFile:
    """A mapped file, of which every leaf is hashed when it is first read.

    A change of the file after that is not noticed, since a mapping shows the file as it
    is. Two threads that read one leaf may both hash it.
    """

    def __init__(self, path: str | Path, digest: FileDigest) -> None:
        self.path, self.digest = Path(path), digest
        try:
            mapped = np.memmap(path, np.uint8, mode="r") if digest.size else ()
        except (OSError, ValueError) as error:
            raise ConfigError(f"data_path: cannot map {path}: {error}") from error
        self.content = np.asarray(mapped, np.uint8)
        """All bytes; `check` those that are read."""
        if len(self.content) != digest.size:
            raise changed(path, min(len(self.content), digest.size), digest.size)
        self._known = bytearray(len(digest))

    def check(self, start: int, stop: int) -> None:
        """Check the bytes from `start` up to `stop`; `ConfigError` if changed."""
        for leaf in range(start // LEAF, -(-stop // LEAF)):
            if not self._known[leaf]:
                self._check_leaf(leaf)

    def view(self, start: int, stop: int) -> memoryview:
        """These bytes, checked, without a copy."""
        self.check(start, stop)
        return self.content[start:stop].data

    def open(self) -> io.BufferedReader:
        """A file object for other libraries, checked as they read."""
        return io.BufferedReader(_Reader(self))

    def _check_leaf(self, leaf: int) -> None:
        part = self.content[leaf * LEAF : (leaf + 1) * LEAF]
        if hashlib.sha256(part.data).digest() != self.digest.leaf(leaf):
            raise changed(self.path, leaf * LEAF, leaf * LEAF + len(part) - 1)
        self._known[leaf] = 1


class _Reader(io.RawIOBase):
    """A position in a verified file."""

    def __init__(self, file: VerifiedFile) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(
            whence, self._file.digest.size
        )
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._file.digest.size)
        if not 0 <= self._at < stop:
            return 0
        count = stop - self._at
        buffer[:count] = self._file.view(self._at, self._at + count)
        self._at += count
        return count
