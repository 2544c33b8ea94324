"""Docstrings and rows as Markdown."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from textwrap import dedent

NOTICE = "<!-- Written by `make docs` from the docstrings; change those. -->"


def markdown(doc: str | None) -> str:
    """A docstring as markdown: its code becomes fenced blocks."""
    parts = []
    for is_code, group in groupby(_marked_lines(doc or ""), key=itemgetter(0)):
        text = "\n".join(line for _, line in group)
        if text.strip():
            parts.append(_fenced(text) if is_code else text.strip("\n"))
    return "\n\n".join(parts)


def _fenced(text: str) -> str:
    return f"```mlir\n{dedent(text).strip()}\n```"


def _marked_lines(doc: str) -> Iterator[tuple[bool, str]]:
    """Each line with whether it is code: indented, or in a paragraph of IR."""
    lines = _undented(doc)
    code = in_ir = False
    for i, line in enumerate(lines):
        if not line:
            in_ir = False
            # A blank line is code where code goes on after it.
            code = code and _is_code(next(filter(None, lines[i:]), ""))
        else:
            in_ir = in_ir or _starts_ir(line)
            code = in_ir or _is_code(line)
        yield code, line


def _undented(doc: str) -> list[str]:
    """Lines without the indentation that a class's or a module's docstring has."""
    lines = doc.strip("\n").rstrip().splitlines()
    margin = "    " if any(line.startswith("    ") for line in lines[1:]) else ""
    inside = all(line.startswith("    ") for line in lines[1:] if line)
    return [line.removeprefix(margin) if inside else line for line in lines]


def _is_code(line: str) -> bool:
    return line.startswith("    ") or _starts_ir(line)


def _starts_ir(line: str) -> bool:
    return line.startswith(("%", '"pcp.'))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
