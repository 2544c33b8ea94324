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


def read_json(path: str | Path) -> Any:
    """What a JSON file says; `OSError`, or `ValueError` for what is no JSON of ours."""
    return strict_json.parse(read_bytes(path, MAX_JSON_BYTES))


def read_object(path: str | Path) -> dict[str, Any]:
    """The JSON object in a file; `ConfigError` says why there is none."""
    try:
        found = read_json(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return found
