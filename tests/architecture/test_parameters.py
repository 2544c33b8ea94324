"""How many parameters a function or a dataclass of the runtime takes: at most eight."""

import ast
import re
from collections.abc import Iterator

import pytest
from helpers.repository.sources import ROOT, nodes, sources

MOST = 8
#: What a frame has on the wire, which `frame.py` describes field by field.
WIRE = {"frame": ["Frame takes 9", "Header takes 9"]}


def too_many(source: str) -> list[str]:
    """Functions with more, `self` and `cls` not counted; `**options` counts as one."""
    return [
        f"{node.name} takes {count}"
        for node in nodes(source)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if (count := _parameters(node)) > MOST
    ]


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    if not isinstance(node, ast.ClassDef):
        return _count(node.args)
    made = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    return len([*_fields(node)]) if made else 0


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """What the constructor of a dataclass takes, but for what it inherits."""
    for line in node.body:
        if isinstance(line, ast.AnnAssign):
            told = ast.unparse(line)
            if not re.search(r": (?:ClassVar|KW_ONLY)|init=False", told):
                yield told


def _count(given: ast.arguments) -> int:
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    own = [one for one in named if one.arg not in ("self", "cls")]
    return len(own) + (given.vararg is not None) + (given.kwarg is not None)


def dataclass_of(last: str) -> str:
    """The source of one with eight fields and this one."""
    fields = [*(f"{name}: int" for name in "abcdefgh"), last]
    return "\n  ".join(["@dataclass(slots=True)\nclass A:", *fields])


@pytest.mark.parametrize("file", sources("runtime"), ids=lambda file: file.stem)
def test_no_function_takes_more_than_eight(file):
    found = too_many(file.read_text())
    assert found == WIRE.get(file.stem, []), file.relative_to(ROOT)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def f(a, b, c, d, e, f, g, h): ...", []),
        ("def f(self, a, b, c, d, e, f, g, **h): ...", []),
        ("def f(a, b, c, d, e, f, g, h, *, i): ...", ["f takes 9"]),
        ("class A:\n  def f(self, a, b, c, d, e, f, g, *h, **i): ...", ["f takes 9"]),
        (dataclass_of("i: int"), ["A takes 9"]),
        (dataclass_of("i: int = field(init=False)"), []),
        (dataclass_of("i: ClassVar[int] = 1"), []),
        (dataclass_of("i: int").partition("\n")[2], []),
    ],
)
def test_a_ninth_parameter_is_noticed(source, found):
    assert too_many(source) == found
