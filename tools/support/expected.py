"""Diagnostics against the `expected-error {{...}}` comments of a test file.

The comments are those of mlir-opt: `expected-error`, `-warning`, `-note` and
`-remark`, with `@+1`, `@-2`, `@above`, `@below` or `@unknown`, and `-re` for a
text with `{{regular expressions}}` inside. `@below` is the next line without
such a comment, `@above` the last one.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PROG = "pcp-opt"
SEPARATOR = "// -----"
"""Between the parts of a file that `--split-input-file` works on one by one."""

COMMENT = re.compile(
    r"expected-(?P<kind>error|warning|note|remark)(?P<re>-re)? *"
    r"(?:@(?P<where>[+-]\d+|above|below|unknown))? *\{\{(?P<text>.*)\}\}\s*$"
)
MISSPELT = re.compile(r"//\s*expect\w*-\w+")


@dataclass(frozen=True)
class Received:
    """A diagnostic: its kind, its line in the file (None if unknown), its text."""

    kind: str
    line: int | None
    text: str


@dataclass(frozen=True)
class Expected:
    """One comment: what should come where; `written` is the comment's own line."""

    kind: str
    line: int | None
    pattern: re.Pattern[str]
    text: str
    written: int

    def matches(self, received: Received) -> bool:
        """Whether the diagnostic is of this kind, at this line, with this text."""
        same_place = (self.kind, self.line) == (received.kind, received.line)
        return same_place and self.pattern.search(received.text) is not None


def mismatches(
    lines: Sequence[str], received: Iterable[Received], *, first_line: int = 1
) -> list[str]:
    """What was not expected, and what was and did not come; empty when all is well.

    `lines` are numbered from `first_line`. A comment matches one diagnostic.
    """
    open_comments = expectations(lines, first_line)
    problems = [
        f"{first_line + i}: not a directive: {line.strip()}"
        for i, line in enumerate(lines)
        if MISSPELT.search(line) and not COMMENT.search(line)
    ]
    for diagnostic in received:
        found = next((e for e in open_comments if e.matches(diagnostic)), None)
        if found is not None:
            open_comments.remove(found)
        else:
            where = "unknown location" if diagnostic.line is None else diagnostic.line
            problems.append(f"{where}: unexpected {diagnostic.kind}: {diagnostic.text}")
    problems += [
        f'{e.written}: expected {e.kind} "{e.text}" was not produced'
        for e in open_comments
    ]
    return problems


def expectations(lines: Sequence[str], first_line: int = 1) -> list[Expected]:
    """The comments of `lines`, in order."""
    found = []
    for index, line in enumerate(lines):
        if match := COMMENT.search(line):
            written = first_line + index
            target = _target(match["where"], index, lines)
            found.append(
                Expected(
                    match["kind"],
                    None if target is None else first_line + target,
                    _pattern(match["text"], bool(match["re"])),
                    match["text"],
                    written,
                )
            )
    return found


def _target(where: str | None, index: int, lines: Sequence[str]) -> int | None:
    """The index of the line that a comment on line `index` speaks of."""
    if where is None:
        return index
    if where == "unknown":
        return None
    if where in ("above", "below"):
        step = -1 if where == "above" else 1
        index += step
        while 0 <= index < len(lines) and COMMENT.search(lines[index]):
            index += step
        return index
    return index + int(where)


def _pattern(text: str, is_regex: bool) -> re.Pattern[str]:
    """Literal text; with `-re`, what stands in `{{...}}` is a regular expression."""
    if not is_regex:
        return re.compile(re.escape(text))
    parts = re.split(r"\{\{(.*?)\}\}", text)
    return re.compile(
        "".join(
            f"(?:{part})" if i % 2 else re.escape(part) for i, part in enumerate(parts)
        )
    )
