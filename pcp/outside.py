"""Files from outside: regular ones, of a bounded size, with JSON no parser dies of.

A named pipe would be waited for, a device never end, deep JSON end the parser's stack.
Here they are an `OSError` or a `ValueError`, as of any file that cannot be read, or is
no JSON; who reads says in terms of its own what that means. `read_object` says it in
general ones.
"""

import errno
import lzma
import os
import stat
import struct
import zipfile
import zlib
from io import BufferedReader
from pathlib import Path
from typing import Any

from pcp import strict_json
from pcp.errors import ConfigError

MAX_JSON_BYTES = 256 << 20
DAMAGED_ARCHIVE = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError,
    NotImplementedError, RuntimeError, MemoryError, OverflowError, ValueError,
    TypeError, struct.error,
)  # fmt: skip
"""Errors that reading a zip archive ends in, or an array of numpy's in one."""


def open_regular(path: str | Path) -> BufferedReader:
    """A file, open to be read; `OSError` for what is no regular file."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """All bytes of a file; `OSError` where there are more than `most`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise OSError(errno.EFBIG, f"it has {size} bytes; {most} are taken")
        return file.read()


def read_json(path: str | Path, **how: Any) -> Any:
    """What a JSON file says; `OSError`, or `ValueError` for what is no JSON of ours.

    `how` are options of `strict_json.parse`.
    """
    return strict_json.parse(read_bytes(path, MAX_JSON_BYTES), **how)


def read_object(path: str | Path, what: str = "it", **how: Any) -> dict[str, Any]:
    """The JSON object in a file; `ConfigError` says why there is none.

    `what` names the file's content in an error; `how` are options of `read_json`.
    """
    try:
        found = read_json(path, **how)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read {what}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return found


def weight_files(index: Path) -> list[Path]:
    """The files of a safetensors index, each once; they lie beside it.

    `OSError`, or `ValueError` for what is no index, or names a file elsewhere.
    """
    said = read_json(index)
    names = said.get("weight_map") if isinstance(said, dict) else None
    if not isinstance(names, dict):
        raise ValueError("it has no weight_map")
    files = [index.parent / str(name) for name in dict.fromkeys(names.values())]
    if any(file.parent != index.parent for file in files):
        raise ValueError("it names a file in another folder")
    return files
