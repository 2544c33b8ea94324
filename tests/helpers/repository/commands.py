"""The commands of a shell block, held against what would run them.

For blocks that cannot run where tests run. `pcp`'s own commands are parsed by their
real parsers, which end there; scripts and tests must exist and answer.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest
from helpers.repository.installation import PROJECT
from helpers.repository.sources import ROOT

from pcp.tools import cli
from pcp.tools.support.command import Parser

_BETWEEN = {"|", "||", "&&", ";", "&"}
_REDIRECTED = {">", ">>", "<"}
_SAME_PLACE = re.compile(r"\d?>&\d")
FILTERS = {"chmod", "echo", "less", "openssl"}
LIMIT_S = 120
#: What files have in them, by the option `-m`.
_SLOW_IN = {
    "": re.compile(""),
    "slow": re.compile(r"mark\.slow|@sampled\("),
    "slow or not slow": re.compile(""),
}


def commands(text: str) -> list[list[str]]:
    """The simple commands of a block as lists of words, without redirections."""
    found: list[list[str]] = []
    for line in _SAME_PLACE.sub("", text.replace("\\\n", " ")).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.wordchars += "$%+,:=@"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word in _BETWEEN:
                found += [words] if words else []
                words = []
            else:
                words.append(word)
    return [list(_plain(words)) for words in found]


def _plain(words: Sequence[str]) -> Iterator[str]:
    skip = False
    for word in words:
        if not skip and word not in _REDIRECTED:
            yield word
        skip = word in _REDIRECTED


def check(words: Sequence[str]) -> None:
    """Fail where a command would be refused before it does anything."""
    name, rest = words[0], list(words[1:])
    if name in PROJECT["scripts"]:
        _parsed(name, rest)
    elif name == "python":
        _answers(rest[0])
    elif name == "pytest":
        _collected(rest)
    elif name == "make":
        _made(rest)
    else:
        assert name in FILTERS, f"no check for {name!r}: write one"


class _Parsed(BaseException):
    """The parser took the command line."""


@contextmanager
def _only_parsing() -> Iterator[None]:
    """`parse_args` ends the command where it would begin to work."""

    def parse_args(self: Parser, *given: object) -> None:
        super(Parser, self).parse_args(*given)  # pyright: ignore[reportArgumentType, reportCallIssue]
        raise _Parsed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "parse_args", parse_args)
        yield


def _parsed(name: str, arguments: Sequence[str]) -> None:
    """By the parser of the command, and of the one behind `--` of `pcp supervise`."""
    module, _, function = PROJECT["scripts"][name].partition(":")
    argv = cli.translate(arguments) if name == "pcp" else list(arguments)
    at = argv.index("--") + 1 if "--" in argv else None
    main = getattr(import_module(module), function)
    if argv == ["--version"]:
        assert main(argv) == 0
        return
    with _only_parsing(), pytest.raises(_Parsed):
        main(argv)  # returns where its parser refuses, having said why
    if at is not None:
        _parsed("pcp", argv[at:])


def _answers(script: str) -> None:
    """A script is there and has a `--help`."""
    done = _run(sys.executable, script, "--help")
    assert done.startswith("usage: "), script


def _collected(arguments: Sequence[str]) -> None:
    """Pytest finds at least one test; else it exits with 4 or 5.

    Whole files are read for one instead, and for a slow one: that takes no second each.
    """
    *files, option, marks = ["", "", *arguments]
    if option != "-m" or marks not in _SLOW_IN:
        files, marks = list(arguments), ""
    texts = [Path(ROOT, f).read_text() for f in files if f and Path(ROOT, f).is_file()]
    if texts and len(texts) == len([*filter(None, files)]):
        assert all("def test_" in t and _SLOW_IN[marks].search(t) for t in texts)
    else:
        _run(sys.executable, "-m", "pytest", "--collect-only", "-qq", *arguments)


def _made(targets: Sequence[str]) -> None:
    """Make knows the target, and pcp the commands that it would run."""
    recipe = _run("make", "--dry-run", "--always-make", *targets)
    ours = [line.removeprefix(".venv/bin/") for line in recipe.splitlines()]
    for line in (line for line in ours if line.split()[0] in PROJECT["scripts"]):
        for words in commands(line):
            check(words)


def _run(*command: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
