"""How many parameters a function of the runtime takes: at most eight."""

import ast

import pytest
from helpers.repository.sources import ROOT, sources

MOST = 8


def too_many(source: str) -> list[str]:
    """Functions with more, `self` and `cls` not counted; `**options` counts as one."""
    return [
        f"{node.name} takes {count}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (count := _count(node.args)) > MOST
    ]


def _count(given: ast.arguments) -> int:
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    own = [one for one in named if one.arg not in ("self", "cls")]
    return len(own) + (given.vararg is not None) + (given.kwarg is not None)


@pytest.mark.parametrize("file", sources("runtime"), ids=lambda file: file.stem)
def test_no_function_takes_more_than_eight(file):
    assert too_many(file.read_text()) == [], file.relative_to(ROOT)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(a, b, c, d, e, f, g, h): ...", []),
        ("def f(self, a, b, c, d, e, f, g, **h): ...", []),
        ("def f(a, b, c, d, e, f, g, h, *, i): ...", ["f takes 9"]),
        ("class A:\n  def f(self, a, b, c, d, e, f, g, *h, **i): ...", ["f takes 9"]),
    ],
)
def test_a_ninth_parameter_is_noticed(source, found):
    assert too_many(source) == found
