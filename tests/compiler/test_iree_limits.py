"""docs/iree-limits.md says what IREE and pcp-legalize do with each reproducer."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from pcp.compiler.catalog import pipeline
from pcp.compiler.iree import compile_text
from pcp.compiler.targets import find
from pcp.dialect.context import parse
from pcp.errors import CompileError, PassError

FOLDER = Path(__file__).parent / "iree_limits"
TABLE = Path(__file__).parents[2] / "docs" / "iree-limits.md"
FLAGS = ("--iree-hal-target-backends=llvm-cpu", *find("cpu").all_flags)
LEGAL = "builtin.module(pcp-import,pcp-legalize,cse,canonicalize)"


@dataclass(frozen=True)
class Limit:
    """A program, what iree-compile says of it, and what pcp-legalize leaves."""

    name: str
    text: str
    says: str
    leaves: str


def read(path: Path) -> Limit:
    """The two lines of comment at the head of a reproducer."""
    text = path.read_text()
    says, leaves = re.findall(r"^// (?:IREE|pcp-legalize): (.*)$", text, re.MULTILINE)
    return Limit(path.stem, text, says, leaves)


LIMITS = [read(path) for path in sorted(FOLDER.glob("*.mlir"))]


def test_the_table_is_what_the_programs_say() -> None:
    rows = re.findall(r"^\| \[.*$", TABLE.read_text(), re.MULTILINE)
    place = "../tests/compiler/iree_limits"
    assert rows == [
        f"| [{x.name}]({place}/{x.name}.mlir) | {x.says} | {x.leaves} |" for x in LIMITS
    ]


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_iree_refuses_it(limit: Limit) -> None:
    with pytest.raises(CompileError, match=re.escape(limit.says)):
        compile_text(limit.text, FLAGS, timeout=100)


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_pcp_legalize_leaves_what_the_table_says(limit: Limit) -> None:
    module = parse(limit.text)
    if limit.leaves.startswith("an error: "):
        advice = limit.leaves.removeprefix("an error: ")
        with pytest.raises(PassError, match=rf":\d+:\d+: .*{re.escape(advice)}"):
            pipeline(LEGAL).run(module)
        return
    pipeline(LEGAL).run(module)
    if limit.leaves.startswith("stays"):
        with pytest.raises(CompileError, match=re.escape(limit.says)):
            compile_text(str(module), FLAGS, timeout=100)
    else:
        assert compile_text(str(module), FLAGS, timeout=100)
