"""The catalog of passes: each entry loads, is named so, documented and tested."""

import ast
import dataclasses
import re

import pytest
from helpers.present import present
from helpers.repository.sources import ROOT, nodes, sources

from pcp.compiler.catalog import PASSES, lookup
from pcp.passes.core.base import Pass


def stem(name: str) -> str:
    """`pcp-verify-plan` is `verify_plan` in file names."""
    return name.removeprefix("pcp-").replace("-", "_")


def documentation_problems(doc: str | None) -> list[str]:
    """What a pass's docstring lacks: a summary line, IR before and after."""
    summary, _, rest = (doc or "").strip().partition("\n")
    problems = [] if summary.endswith(".") else ["a summary that is one sentence"]
    if not re.search(r"before\b.*\bafter|becomes", rest, re.IGNORECASE | re.DOTALL):
        problems.append("what the IR is before and after")
    if not re.search(r"^ {4,}.*[%@].*$", rest, re.MULTILINE):
        problems.append("an example in IR")
    return problems


@pytest.mark.parametrize("name", PASSES)
def test_an_entry_is_a_documented_frozen_dataclass_of_that_name(name):
    cls = present(lookup(name))
    assert issubclass(cls, Pass)
    assert cls.name == name
    assert vars(cls)["__dataclass_params__"].frozen
    assert not documentation_problems(cls.__doc__), name
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING
        assert required or cls.from_options is not None


@pytest.mark.parametrize("name", PASSES)
def test_an_entry_has_a_lit_file_that_runs_it(name):
    found = [
        path
        for path in (ROOT / "lit_tests").rglob(f"{stem(name)}.mlir")
        if name in path.read_text()
    ]
    assert found, f"no lit_tests/*/{stem(name)}.mlir runs {name}"


def passes_defined(source: str) -> set[str]:
    """The `name = "pcp-..."` of each class in a source."""
    return {
        value
        for node in (nodes(source) if '"pcp-' in source else ())
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.Assign)
        and ast.unparse(statement.targets[0]) == "name"
        and isinstance(statement.value, ast.Constant)
        and isinstance(value := statement.value.value, str)
        and value.startswith("pcp-")
    }


def test_every_pass_is_in_the_catalog():
    rooms = ("passes", "autodiff", "compiler")
    defined = {
        name
        for room in rooms
        for file in sources(room)
        for name in passes_defined(file.read_text())
    }
    assert defined == set(PASSES)


def test_the_checks_bite():
    assert documentation_problems(None)
    good = "Fold.\n\n    Before:\n\n        %0 = a\n\n    After:\n\n        %0 = b"
    assert documentation_problems(good) == []
    assert documentation_problems(good.replace("After", "Then"))
    assert documentation_problems(good.replace("Fold.", "Fold"))
    assert documentation_problems("Fold.\n\nBefore: a. After: b.")
    assert passes_defined('class A:\n    name = "pcp-a"') == {"pcp-a"}
    assert stem("pcp-lower-to-runtime") == "lower_to_runtime"
