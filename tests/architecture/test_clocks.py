"""No test asserts how long something took: the machine may be busy with other work.

What must not wait is given a limit of its own, and fails differently when that has
passed; what has to come is waited for by `helpers.worlds.communicators.eventually`.
"""

import ast
import re
from collections.abc import Iterator

import pytest
from helpers.repository.sources import ROOT

CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}
CALLED = re.compile(rf"\b({'|'.join(sorted(CLOCKS))})\(")


def reads_clock(node: ast.AST) -> bool:
    """Whether a call of a clock stands in a piece of code."""
    called = [n.func for n in ast.walk(node) if isinstance(n, ast.Call)]
    names = {f.attr for f in called if isinstance(f, ast.Attribute)}
    return bool(CLOCKS & (names | {f.id for f in called if isinstance(f, ast.Name)}))


def durations(tree: ast.AST) -> set[str]:
    """The variables that hold a difference of times."""
    made = [n for n in ast.walk(tree) if isinstance(n, ast.Assign)]
    made = [n for n in made if any(isinstance(x, ast.Sub) for x in ast.walk(n.value))]
    targets = (t for n in made if reads_clock(n.value) for t in n.targets)
    return {t.id for t in targets if isinstance(t, ast.Name)}


def asserted(source: str) -> Iterator[int]:
    """The lines with an assertion about a duration."""
    if not CALLED.search(source):
        return
    tree = ast.parse(source)
    held = durations(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            names = {n.id for n in ast.walk(node.test) if isinstance(n, ast.Name)}
            if reads_clock(node.test) or names & held:
                yield node.lineno


def test_no_clock_is_asserted() -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    texts = {file: file.read_text() for file in files}
    found = [f"{file}:{n}" for file, text in texts.items() for n in asserted(text)]
    assert not found


@pytest.mark.parametrize(
    "source",
    [
        "began = time.monotonic()\nassert time.monotonic() - began < 3",
        "took = perf_counter() - began\nassert took < 3",
        "while True:\n  assert time.monotonic_ns() < until",
    ],
)
def test_assertions_about_time_are_found(source: str) -> None:
    assert list(asserted(source))


def test_moments_may_be_compared() -> None:
    assert not list(asserted("before = monotonic()\nassert link.last_sent >= before"))
