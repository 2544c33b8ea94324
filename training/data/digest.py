"""A digest of all bytes of the data: a tree of SHA-256 over leaves of 1 MiB.

    root = H(name, file root; ...)      file root = H(size, leaves)      leaf = H(1 MiB)

The root tells data apart, two trees show where data differ, and a leaf can be checked
alone when a sample is read from it (`pcp.training.data.verified_file`). The hash is
SHA-256 because processors have instructions for it (`python benchmarks/data.py` prints
its speed here), and because no other data of the same digest can be made.

The tree of a large file is kept beside it, as `NAME.pcp-digest`: a line of JSON, then
the leaves. The tree counts as long as size, inode and times of change of every file are
those of the line; so a copy of it beside another file does not count.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pcp import outside, strict_json, whole_file
from pcp.errors import ConfigError, counted

LEAF = 1 << 20
"""Bytes of a leaf; the last leaf of a file may have fewer."""
SUFFIX = ".pcp-digest"
KEPT_FROM_BYTES = 32 << 20
KEPT_FROM_FILES = 1000
"""Smaller data are hashed again (0.05 s): no file is kept beside them."""
MOST_PARTS = 512
_HASH = 32  # bytes
_LEAVES_AT_ONCE = 32
_MOST_THREADS = 8

Stamp = tuple[int, int, int, int]
"""Size, inode, time of change of the content and of the inode, in nanoseconds."""
Parts = list[tuple[str, str]]
"""The names of parts of the data, in order, each with the first half of its digest."""


@dataclass(frozen=True)
class FileDigest:
    """The leaves of one file; `name` is relative to the data's folder, or empty."""

    name: str
    size: int
    leaves: bytes
    stamp: Stamp = (0, 0, 0, 0)
    range: tuple[str, int, int] | None = None
    """A numpy dtype, and the least and the largest number of the file in that type."""

    @cached_property
    def root(self) -> bytes:
        """The digest of the file: of its size and its leaves."""
        return hashlib.sha256(b"%d:" % self.size + self.leaves).digest()

    def leaf(self, number: int) -> bytes:
        """The digest of one leaf."""
        return self.leaves[_HASH * number : _HASH * (number + 1)]

    def __len__(self) -> int:
        """The number of leaves."""
        return len(self.leaves) // _HASH


@dataclass(frozen=True)
class TreeDigest:
    """All files of the data, by name; a single file has no name."""

    files: tuple[FileDigest, ...]

    @cached_property
    def root(self) -> str:
        """64 hexadecimal digits: the digest of the data."""
        made = hashlib.sha256()
        for file in self.files:
            made.update(file.name.encode() + b"\0" + file.root)
        return made.hexdigest()

    def parts(self, most: int = MOST_PARTS) -> Parts:
        """At most `most` parts by name: files, or ranges of bytes of a single file."""
        if len(self.files) == 1 and not self.files[0].name:
            return _ranges(self.files[0], most)
        files = self.files
        step = -(-len(files) // most) or 1
        groups = [files[at : at + step] for at in range(0, len(files), step)]
        return [(_named(group), _half(f.root for f in group)) for group in groups]


def difference(here: Parts, there: Parts) -> str:
    """The first part that differs between two copies of the data, in words."""
    ours, theirs = dict(here), dict(there)
    for name in sorted({*ours, *theirs}, key=[*ours, *theirs].index):
        if ours.get(name) == theirs.get(name):
            continue
        if name not in ours:
            return f"{name} is missing here"
        return f"they differ in {name}" if name in theirs else f"{name} is here alone"
    return "its parts agree, and their order does not"


def joined(trees: Mapping[str, TreeDigest]) -> TreeDigest:
    """The tree of several files or folders by name; a single tree is unchanged."""
    if len(trees) == 1:
        return next(iter(trees.values()))
    return TreeDigest(
        tuple(
            replace(file, name="/".join(filter(None, (name, file.name))))
            for name, tree in trees.items()
            for file in tree.files
        )
    )


def of_bytes(content: bytes | memoryview) -> TreeDigest:
    """The tree of data in memory."""
    view = memoryview(content)
    leaves = (view[at : at + LEAF] for at in range(0, len(view), LEAF))
    digests = b"".join(hashlib.sha256(leaf).digest() for leaf in leaves)
    return TreeDigest((FileDigest("", len(view), digests),))


def of_path(path: str | Path, dtype: str | None = None) -> TreeDigest:
    """The tree of a file or folder; the kept one where it counts.

    With a `dtype` the range of the numbers of each file in that type is found too.
    `ConfigError` where a file cannot be read, or changes meanwhile.
    """
    path = Path(path)
    try:
        found = {name: path / name if name else path for name in _names(path)}
        stamps = {name: _stamp(file) for name, file in found.items()}
        kept = {f.name: f for f in _kept(path, stamps, dtype)}
        missing = {n: file for n, file in found.items() if n not in kept}
        made = _made(missing, stamps, dtype)
    except OSError as error:
        what = error.filename or path
        raise ConfigError(f"data_path: cannot read {what}: {error.strerror}") from error
    tree = TreeDigest(tuple((kept | made)[name] for name in found))
    if made and worth_keeping(tree):
        _keep(path, tree)
    return tree


def worth_keeping(tree: TreeDigest) -> bool:
    """Whether the data are so large that their tree is kept beside them."""
    total = sum(file.size for file in tree.files)
    return total >= KEPT_FROM_BYTES or len(tree.files) >= KEPT_FROM_FILES


def kept_at(path: str | Path) -> Path:
    """The path at which the tree of a file or folder is kept."""
    path = Path(path)
    return path.with_name(path.name + SUFFIX)


def changed(path: str | Path, first: int, last: int) -> ConfigError:
    """The error for bytes of a file that differ from its digest."""
    return ConfigError(
        f"data_path: {path} was changed: bytes {first} to {last} are not those that "
        "the run's digest was made of; put the file back, or start a new run"
    )


# Files ---------------------------------------------------------------------


def _names(path: Path) -> list[str]:
    """The files of a folder, in the order of their names; "" for a single file."""
    if not path.is_dir():
        return [""]
    found = []
    for folder, inner, files in os.walk(path):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [Path(folder, name) for name in files if _is_data(name)]
    return sorted(file.relative_to(path).as_posix() for file in found)


def _is_data(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(SUFFIX)


def _stamp(path: Path) -> Stamp:
    found = path.stat()
    return found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _made(
    files: Mapping[str, Path], stamps: Mapping[str, Stamp], dtype: str | None
) -> dict[str, FileDigest]:
    """The leaves of files, by a thread a processor: hashing releases the GIL."""
    tasks = [
        (name, first)
        for name in files
        for first in range(0, max(1, stamps[name][0]), LEAF * _LEAVES_AT_ONCE)
    ]
    if not tasks:
        return {}
    leaves: dict[str, list[bytes]] = {name: [] for name in files}
    ranges: dict[str, list[tuple[int, int]]] = {name: [] for name in files}
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        done = pool.map(lambda task: _leaves(files[task[0]], task[1], dtype), tasks)
        for (name, _), (digests, range_) in zip(tasks, done, strict=True):
            leaves[name].append(digests)
            ranges[name] += range_
    for name, file in files.items():
        if _stamp(file) != stamps[name]:
            raise ConfigError(f"data_path: {file} is being written; wait until it is")
    return {
        name: FileDigest(
            name,
            stamps[name][0],
            b"".join(leaves[name]),
            stamps[name],
            _joined(dtype, ranges[name]),
        )
        for name in files
    }


def _leaves(
    path: Path, first: int, dtype: str | None
) -> tuple[bytes, list[tuple[int, int]]]:
    """The digests of some leaves, from a byte on, and the ranges of their numbers."""
    buffer, digests, ranges = bytearray(LEAF), [], []
    with outside.open_regular(path) as file:
        file.seek(first)
        for _ in range(_LEAVES_AT_ONCE):
            if not (count := _fill(file, buffer)):
                break
            view = memoryview(buffer)[:count]
            digests.append(hashlib.sha256(view).digest())
            if dtype is not None and (ids := _numbers(view, dtype)).size:
                ranges.append((int(ids.min()), int(ids.max())))
    return b"".join(digests), ranges


def _fill(file: Any, buffer: bytearray) -> int:
    """Fill the buffer; the number of bytes, fewer at the end of the file."""
    view, at = memoryview(buffer), 0
    while at < len(buffer) and (count := file.readinto(view[at:])):
        at += count
    return at


def _numbers(view: memoryview, dtype: str) -> np.ndarray:
    width = np.dtype(dtype).itemsize
    return np.frombuffer(view[: len(view) // width * width], dtype)


def _joined(
    dtype: str | None, ranges: Sequence[tuple[int, int]]
) -> tuple[str, int, int] | None:
    if dtype is None or not ranges:
        return None
    return dtype, min(low for low, _ in ranges), max(high for _, high in ranges)


# Kept trees --------------------------------------------------------------


def _keep(path: Path, tree: TreeDigest) -> None:
    """Write a tree beside its data, unless the folder is read-only."""
    facts = [[f.name, *f.stamp, f.range] for f in tree.files]
    head = {"format": "pcp-digest", "version": 1, "leaf": LEAF, "root": tree.root}
    line = strict_json.dumps(head | {"files": facts}).encode() + b"\n"
    with suppress(OSError), whole_file.replacing(kept_at(path)) as file:
        file.write(line + b"".join(f.leaves for f in tree.files))


def _kept(
    path: Path, stamps: Mapping[str, Stamp], dtype: str | None
) -> Iterator[FileDigest]:
    """The unchanged files of a kept tree; none if the tree is not whole."""
    for file in _read(kept_at(path)):
        ranged = dtype is None or not file.size or (file.range or "")[:1] == (dtype,)
        if stamps.get(file.name) == file.stamp and ranged:
            yield file


def _read(path: Path) -> Iterable[FileDigest]:
    """The files of a kept tree; none without a whole tree."""
    try:
        line, _, leaves = path.read_bytes().partition(b"\n")
        head = strict_json.parse(line)
        if (head["format"], head["version"], head["leaf"]) != ("pcp-digest", 1, LEAF):
            return ()
        files, at = [], 0
        for name, *stamp, range_ in head["files"]:
            count = -(-stamp[0] // LEAF) * _HASH
            taken = None if range_ is None else tuple(range_)
            own = leaves[at : at + count]
            files.append(FileDigest(name, stamp[0], own, tuple(stamp), taken))
            at += count
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return ()
    whole = at == len(leaves) and TreeDigest(tuple(files)).root == head["root"]
    return files if whole else ()


# Parts ---------------------------------------------------------------------


def _ranges(file: FileDigest, most: int) -> Parts:
    """Ranges of bytes of one file, behind a part for its size."""
    step = -(-len(file) // most) or 1
    sizes = [("the size", str(file.size))]
    return sizes + [
        (
            f"bytes {LEAF * at} to {min(LEAF * (at + step), file.size) - 1}",
            _half(file.leaf(n) for n in range(at, min(at + step, len(file)))),
        )
        for at in range(0, len(file), step)
    ]


def _named(group: Sequence[FileDigest]) -> str:
    if len(group) == 1:
        return group[0].name
    return f"{counted(len(group), 'file')} from {group[0].name} to {group[-1].name}"


def _half(digests: Iterable[bytes]) -> str:
    return hashlib.sha256(b"".join(digests)).hexdigest()[:32]
