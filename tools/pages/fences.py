"""The fenced blocks of a Markdown text, each with its place."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pcp.errors import ConfigError

_FENCE = re.compile(r"^ *(```+)[ \t]*(\S*)(.*)$")
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """What stands between two fences; `line` is the first fence's.

    A block with `title="NAME"` behind its language is a file of that name.
    """

    file: str
    line: int
    language: str
    text: str
    title: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def blocks_of(file: str, text: str) -> Iterator[Block]:
    """The blocks of one document; a fence that is not closed is an error."""
    opened: tuple[int, str, str, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            title = _TITLE.search(fence[3])
            opened = (number, fence[1], fence[2], title[1] if title else "")
            inside = []
        elif opened and fence and fence[1] == opened[1] and not fence[2]:
            text = "\n".join(inside) + "\n"
            yield Block(file, opened[0], opened[2], text, opened[3])
            opened = None
        elif opened:
            inside.append(line)
    if opened:
        raise ConfigError(f"{file}:{opened[0]}: the fence is never closed")
