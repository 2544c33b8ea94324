"""Compiled modules by content: the same text, flags and compiler, the same bytes.

An entry is a file named by its key: a line with the SHA-256 of the body, then
the body. A damaged entry counts as absent and is written again. Entries appear
whole (written aside, then renamed), so several compilers may share a folder.
"""

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pcp import whole_file

SUFFIX = ".vmfb"
DEFAULT_BYTES = 4 << 30


def key(text: str, flags: Sequence[str], compiler: str) -> str:
    """The name of what compiling `text` with `flags` by `compiler` gives."""
    digest = hashlib.sha256()
    for part in (compiler, *flags, text):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


@dataclass(frozen=True)
class Cache:
    """A folder of entries; the oldest go when it holds over `max_bytes`."""

    folder: Path
    max_bytes: int = DEFAULT_BYTES

    def get(self, key: str) -> bytes | None:
        """The bytes stored under `key`, or None."""
        path = self._path(key)
        try:
            digest, _, body = path.read_bytes().partition(b"\n")
        except OSError:
            return None
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # the age that decides what goes first
        return body

    def put(self, key: str, body: bytes) -> None:
        """Store `body`, whole or not at all; raises OSError when it cannot."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file.replacing(path, mode=0o600) as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        self.prune(keep=path)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / (key + SUFFIX)

    def entries(self) -> list[tuple[int, int, Path]]:
        """When each was used last (in ns), its bytes and its file; the oldest first."""
        found = []
        for path in self.folder.glob(f"*/*{SUFFIX}"):
            with contextlib.suppress(OSError):  # another process may prune too
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        return sorted(found)

    def prune(self, keep: Path | None = None) -> list[Path]:
        """Remove the entries used longest ago, not `keep`, until the folder fits."""
        entries, gone = self.entries(), []
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.max_bytes:
                break
            if path != keep:
                path.unlink(missing_ok=True)
                gone.append(path)
                total -= size
        return gone
