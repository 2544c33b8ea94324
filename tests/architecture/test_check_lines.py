"""Check lines that check nothing: misspelt directives, tests that run nothing."""

import re

import pytest
from helpers.repository.sources import ROOT

KIND = r"(?:-(?:NEXT|SAME|NOT|DAG|LABEL|EMPTY|COUNT-\d+))?(?:\{LITERAL\})?"
DIAGNOSTIC = re.compile(
    r"expected-(error|warning|note|remark)(-re)? *"
    r"(@([+-]\d+|above|below|unknown))? *\{\{.*\}\}\s*$"
)
FILES = sorted((ROOT / "lit_tests").rglob("*.mlir"))


def prefixes_of(text: str) -> set[str]:
    """The prefixes a file's RUN lines declare, and CHECK."""
    declared = re.findall(r"--?check-prefix(?:es)?[= ]([\w,-]+)", text)
    return {p for group in declared for p in group.split(",")} | {"CHECK"}


def dead_lines(text: str) -> list[str]:
    """Lines that look like a directive of FileCheck or of pcp-opt, and are none."""
    words = "|".join(map(re.escape, sorted(prefixes_of(text))))
    live = re.compile(rf"({words}){KIND}:")
    lookalike = re.compile(
        rf"^\s*(//|#)\s*(({words})(?![A-Za-z0-9])|(?i:{words})[-\w]*\s*:)"
    )
    dead = [
        line.strip()
        for line in text.splitlines()
        if lookalike.match(line) and not live.search(line)
    ]
    return dead + [
        line.strip()
        for line in text.splitlines()
        if re.search(r"//\s*expect\w*[-_]\w+.*\{\{", line)
        and not DIAGNOSTIC.search(line)
    ]


def checks_nothing(text: str) -> str | None:
    """Why a lit file proves nothing, or None."""
    runs = re.findall(r"^// RUN: (.*)", text, re.MULTILINE)
    if not runs:
        return "has no RUN line"
    checked = {
        p
        for run in runs
        if "filecheck" in run
        for p in (prefixes_of(run) - {"CHECK"} or {"CHECK"})
    }
    for prefix in checked:
        if not re.search(rf"{re.escape(prefix)}{KIND}:", text):
            return f"checks {prefix} and has no {prefix} line"
    unused = prefixes_of(text) - checked - {"CHECK"}
    if unused:
        return f"declares {unused} and never runs them"
    if not checked and "--verify-diagnostics" not in text:
        return "neither runs filecheck nor verifies diagnostics"
    return None


def test_there_are_lit_files():
    rooms = {path.parent.name for path in FILES}
    assert {"autodiff", "dialect", "passes", "tools"} <= rooms


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_check_line_is_live(path):
    text = path.read_text()
    assert dead_lines(text) == []
    assert checks_nothing(text) is None


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_names_are_snake_case(path):
    assert re.fullmatch(r"[a-z0-9_]+\.mlir", path.name)


@pytest.mark.parametrize(
    "line",
    [
        "// CHECK_NEXT: x",
        "// CHECK NEXT: x",
        "// CHECK-NXT: x",
        "// CHECK-COUNT: x",
        "// CHECK : x",
        "// CHECK-NEXT  x",
        "// CHECK\N{FULLWIDTH COLON} x",
        "// check: x",
        "// expected-eror {{x}}",
        "// expected_error {{x}}",
        "// expected-error@belo {{x}}",
    ],
)
def test_a_dead_line_is_seen(line):
    assert dead_lines(line) == [line]


@pytest.mark.parametrize(
    "line",
    [
        "// CHECK: x",
        "// CHECK-COUNT-2: x",
        "// CHECK-DAG{LITERAL}: [[x]]",
        "// expected-error@-2 {{x}}",
        "// expected-note-re@below {{x {{[a-z]}}}}",
        "// a word on checks",
    ],
)
def test_a_live_line_is_left_alone(line):
    assert dead_lines(line) == []


@pytest.mark.parametrize(
    "text",
    [
        "// CHECK: x",
        "// RUN: pcp-opt %s",
        "// RUN: pcp-opt %s | filecheck %s",
        "// RUN: pcp-opt %s | filecheck %s --check-prefix=A\n// CHECK: x",
    ],
)
def test_a_file_that_proves_nothing_is_seen(text):
    assert checks_nothing(text)
