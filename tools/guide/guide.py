"""`pcp guide`: the chapters, their exercises, and whether your answers hold.

pcp guide                      the chapters
pcp guide start my-guide       the exercises of all chapters, to be filled in
pcp guide check 3 my-guide     run your answers to chapter 3
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pcp import strict_json
from pcp.errors import ConfigError, UsageError
from pcp.tools.guide.chapters import (
    CHAPTERS,
    answer,
    chapter,
    exercises,
    file_of,
    page_of,
)
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say

PROG = "pcp guide"
LIMIT_S = 60
"""An answer that takes longer waits for something that does not come."""


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser.documented(PROG, __doc__)
    add = parser.add_argument
    words = ("list", "start", "check", "answer")
    add("what", nargs="?", default="list", choices=words, help="default: list")
    add("words", nargs="*", metavar="N or DIR", help="a chapter, the exercises' folder")
    return parser


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    if flags.what == "list":
        return _listed(_words(flags.words, 0, "pcp guide"))
    if flags.what == "start":
        return _started(*_words(flags.words, 1, "pcp guide start DIR"))
    usage = f"pcp guide {flags.what} N [DIR]"
    given = _words(flags.words, 2, usage)
    if not given:
        raise UsageError(f"which chapter? {usage}")
    number, folder = chapter(given[0]), Path(*given[1:])
    if flags.what == "check":
        return _checked(number, folder)
    say(answer(number).rstrip())
    return 0


def _words(given: list[str], most: int, usage: str) -> list[str]:
    if len(given) > most:
        raise UsageError(f"{given[most]!r} is one word too many: {usage}")
    return given


def _listed(_: list[str]) -> int:
    for number, title in enumerate(CHAPTERS.values(), 1):
        say(f"{number:3}  {title:<34}  docs/{page_of(number)}")
    if not Path("docs", "guide").is_dir():
        say("\n(pages of pcp's sources; the exercises and their answers are here)")
    say("\nyour turn:  pcp guide start my-guide && pcp guide check 1 my-guide")
    return 0


def _started(name: str = "guide") -> int:
    folder = Path(name)
    if there := [path for file, _ in exercises() if (path := folder / file).exists()]:
        raise ConfigError(
            f"{there[0]} is there already, and pcp guide writes over no file; name "
            "another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in exercises():
        (folder / file).write_text(text)
    say(f"wrote {len(CHAPTERS)} exercises to {folder}")
    say(f"next:  read docs/{page_of(1)}, fill in {folder / file_of(1)},")
    say(f"       pcp guide check 1 {folder}")
    return 0


def _checked(number: int, folder: Path) -> int:
    path = folder / file_of(number)
    if not path.is_file():
        raise ConfigError(
            f"{path} is not there: pcp guide start {folder} writes the exercises"
        )
    found = _result(number, path)
    for name in found["held"]:
        say(f"right  {name}")
    if found["wrong"] is None:
        say(f"chapter {number} is done")
        return 0
    say(f"wrong  {found['wrong']}")
    say(f"(a worked answer: pcp guide answer {number})")
    return 1


def _result(number: int, path: Path) -> dict[str, Any]:
    """In a process of its own: an answer may wait for ever, or end the process."""
    command = [sys.executable, "-m", "pcp.tools.guide.checks", str(number), str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        waits = f"{path.name}: no answer in {LIMIT_S} s; does something wait for ever?"
        return {"held": [], "wrong": waits}
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not last.startswith("{"):
        said = done.stderr.strip().rpartition("\n")[2] or "it said nothing"
        return {"held": [], "wrong": f"{path.name} ended the process: {said}"}
    return strict_json.parse(last)
