"""Arrays of numpy's files: sample i is row i of each.

Stored members of a `.npz`, and `.npy` files, are mapped; compressed members are read.
"""

import math
import tokenize
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pcp import outside
from pcp.errors import ConfigError
from pcp.training.data import digest
from pcp.training.data.dataset import Sample, Source
from pcp.training.data.digest import TreeDigest
from pcp.training.data.formats.listed import FileDataset
from pcp.training.data.verified_file import VerifiedFile

MAX_UNPACKED = 16 << 30
"""The most bytes of a compressed array, which is in memory as a whole."""
"""Errors of unpacking bytes that are no zip file, or one with a password."""
_NO_ARRAY = (
    ValueError, SyntaxError, TypeError, OverflowError, RecursionError, MemoryError,
    EOFError, tokenize.TokenError,
)  # fmt: skip
_LOCAL_HEADER = 30  # bytes of a zip member's header, in front of two names


class Rows:
    """An array, and a check of the bytes of a row."""

    def __init__(
        self, array: np.ndarray, check: Callable[[int, int], None] = lambda a, b: None
    ) -> None:
        self.array, self._check = array, check
        self._stride = array[:1].nbytes

    def __getitem__(self, index: int) -> np.ndarray:
        self._check(self._stride * index, self._stride * (index + 1))
        return self.array[index]


class Arrays(FileDataset):
    """Samples of equally long arrays that the program takes."""

    def __init__(
        self, source: Source, tree: TreeDigest, arrays: dict[str, Rows]
    ) -> None:
        self.tree = tree
        wanted = {name: a for name, a in arrays.items() if source.wanted(name)}
        every = len(wanted) == len(source.inputs)
        # Where an array is missing, the binding raises, with the names that there are.
        self._arrays = wanted if every else arrays
        lengths = {name: len(a.array) for name, a in self._arrays.items()}
        if every and len(set(lengths.values())) > 1:
            found = ", ".join(f"{name}: {count}" for name, count in lengths.items())
            raise source.refuse(f"has arrays of unequal lengths ({found})")
        self._length = min(lengths.values(), default=0)

    def __len__(self) -> int:
        return self._length

    def largest(self, column: str) -> int | None:
        """The largest number of a column of integers."""
        array = self._arrays[column].array
        return int(array.max()) if array.size and array.dtype.kind in "iu" else None

    def sample(self, index: int) -> Sample:
        """Row `index` of each array."""
        return {name: array[index] for name, array in self._arrays.items()}


def npy(source: Source) -> Arrays:
    """A `.npy` file, or all files of a folder, by their names without the suffix."""
    tree, arrays = digest.of_path(source.path), {}
    for file in tree.files:
        path = Path(source.path, file.name)
        if path.suffix == ".npy":
            verified = VerifiedFile(path, file)
            name = Path(file.name or source.path).with_suffix("")
            key = name.as_posix() if file.name else name.name
            arrays[key] = _mapped(verified, 0, verified.open(), path)
    return Arrays(source, tree, arrays)


def npz(source: Source) -> Arrays:
    """The members of a `.npz` file, by their names."""
    tree = digest.of_path(source.path)
    verified = VerifiedFile(source.path, tree.files[0])
    arrays = {}
    try:
        with zipfile.ZipFile(verified.open()) as archive:
            for member in archive.infolist():
                if member.filename.endswith(".npy"):
                    name = member.filename.removesuffix(".npy")
                    arrays[name] = _member(verified, archive, member)
    except outside.DAMAGED_ARCHIVE as error:
        raise source.refuse(f"is no .npz file: {error}") from error
    return Arrays(source, tree, arrays)


def _member(
    verified: VerifiedFile, archive: zipfile.ZipFile, member: zipfile.ZipInfo
) -> Rows:
    where = f"{verified.path}, {member.filename}"
    if member.compress_type != zipfile.ZIP_STORED:
        return Rows(_unpacked(archive, member, where))
    header = verified.view(member.header_offset, member.header_offset + _LOCAL_HEADER)
    name, more = np.frombuffer(header[26:30], "<u2").tolist()
    begin = member.header_offset + _LOCAL_HEADER + name + more
    file = verified.open()
    file.seek(begin)
    return _mapped(verified, begin, file, where)


def _unpacked(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: object
) -> np.ndarray:
    """A compressed array; at most the bytes that its header announces are unpacked."""
    with archive.open(member) as file:
        shape, dtype = _header(file, where)
        size = math.prod(shape) * dtype.itemsize
        if size > MAX_UNPACKED:
            raise ConfigError(
                f"data_path: {where}: {size} bytes when unpacked, at most "
                f"{MAX_UNPACKED} are; save it with np.savez, which does not compress"
            )
        content = file.read(size)
    if len(content) < size:
        raise ConfigError(f"data_path: {where}: ends before its array does")
    return np.frombuffer(content, dtype).reshape(shape)


def _mapped(verified: VerifiedFile, begin: int, file: Any, where: object) -> Rows:
    """The array whose `.npy` begins at a byte of a file; `file` is at that byte."""
    shape, dtype = _header(file, where)
    start = file.tell()
    size = math.prod(shape) * dtype.itemsize
    part = verified.content[start : start + size]
    if len(part) < size:
        raise ConfigError(f"data_path: {where}: ends before its array does")
    array = part.view(dtype).reshape(shape)

    def check(first: int, last: int) -> None:
        verified.check(start + first, start + last)

    return Rows(array, check)


def _header(file: Any, where: object) -> tuple[tuple[int, ...], np.dtype]:
    try:
        version = np.lib.format.read_magic(file)
        old = version == (1, 0)
        read = (
            np.lib.format.read_array_header_1_0
            if old
            else (np.lib.format.read_array_header_2_0)
        )
        shape, fortran, dtype = read(file)
    except _NO_ARRAY as error:
        raise ConfigError(f"data_path: {where}: no array of numpy: {error}") from error
    if any(size < 0 for size in shape):
        raise ConfigError(f"data_path: {where}: no array of numpy: shape {shape}")
    if dtype.hasobject or (fortran and len(shape) > 1) or not shape:
        raise ConfigError(
            f"data_path: {where}: {dtype} {list(shape)}: samples are rows of an array "
            "of numbers in C order; save it as np.ascontiguousarray gives it"
        )
    return shape, dtype
