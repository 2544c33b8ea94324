"""Models whose parsing would end the process: tried out in another one first.

MLIR's parser calls itself for each level of nesting, and a stack that is used up ends
the process. Text that is nested deeper than any program is parsed by a child first.
"""

import re
import subprocess
import sys
from pathlib import Path

from pcp import outside
from pcp.errors import ConfigError

DEEPEST = 300
"""Brackets in each other that are parsed at once; programs have fewer than 100."""
_SECONDS = 300.0
_PIECES = re.compile(rb'"(?:[^"\\\n]|\\.)*"|[(\[{<]|->|[)\]}>]')
_PARSE = "import sys; from pcp.dialect.context import read; read(sys.argv[1])"


def check_model(path: str | Path) -> None:
    """`ConfigError` for a model of which the parser dies."""
    try:
        content = outside.read_bytes(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it: {error.strerror}") from error
    if (levels := depth(content)) <= DEEPEST:
        return
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PARSE, str(path)],
            capture_output=True,
            timeout=_SECONDS,
            check=False,
        )
        died = done.returncode < 0
    except subprocess.TimeoutExpired:
        died = True
    if died:
        raise ConfigError(
            f"{path}: {levels} brackets in each other: MLIR's parser ends with its "
            "process there; no program is that deep"
        )


def depth(content: bytes) -> int:
    """How many brackets are in each other at most, outside of strings."""
    most = level = 0
    for match in _PIECES.finditer(content):
        piece = match[0]
        if piece in (b"(", b"[", b"{", b"<"):
            level += 1
            most = max(most, level)
        elif piece in (b")", b"]", b"}", b">"):
            level = max(0, level - 1)
    return most
