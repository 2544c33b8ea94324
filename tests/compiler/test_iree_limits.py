"""docs/iree-limits.md says what IREE and pcp-legalize do with each reproducer."""

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.oracles.full_stack import renamed
from helpers.servers.compile_cache import compile_text

from pcp.compiler.catalog import pipeline
from pcp.compiler.emission import target_text
from pcp.compiler.iree import common_flags
from pcp.compiler.targets import find
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import CompileError, PassError

FOLDER = Path(__file__).parent / "iree_limits"
TABLE = Path(__file__).parents[2] / "docs" / "iree-limits.md"
LEGAL = "builtin.module(pcp-import,pcp-legalize,cse,canonicalize)"


@dataclass(frozen=True)
class Limit:
    """A program, what iree-compile says of it, and what pcp-legalize leaves.

    `target` is that of iree-compile, and what of the passes of a target counts in.
    """

    name: str
    text: str
    says: str
    leaves: str
    target: str = "cpu"

    @property
    def row(self) -> str:
        """Its line of the table."""
        place = f"[{self.name}](../tests/compiler/iree_limits/{self.name}.mlir)"
        where = "" if self.target == "cpu" else f", {self.target}"
        return f"| {place}{where} | {self.says} | {self.leaves} |"

    def compile(self, text: str) -> bytes:
        """What iree-compile makes of a text."""
        target = find(self.target)
        flags = (f"--iree-hal-target-backends={target.backend}", *target.all_flags)
        return compile_text(text, flags, timeout=100)


def read(path: Path) -> Limit:
    """The two lines of comment at the head of a reproducer, or three."""
    text = path.read_text()
    says, leaves = re.findall(r"^// (?:IREE|pcp-legalize): (.*)$", text, re.MULTILINE)
    named = re.search(r"^// Target: (.*)$", text, re.MULTILINE)
    return Limit(path.stem, text, says, leaves, named[1] if named else "cpu")


LIMITS = [read(path) for path in sorted(FOLDER.glob("*.mlir"))]


def test_the_table_is_what_the_programs_say() -> None:
    rows = re.findall(r"^\| \[.*$", TABLE.read_text(), re.MULTILINE)
    assert rows == [limit.row for limit in LIMITS]


@pytest.mark.slow
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_iree_refuses_it(limit: Limit) -> None:
    with pytest.raises(CompileError, match=re.escape(limit.says)):
        limit.compile(limit.text)


@functools.cache
def legal(limit: Limit) -> ir.Module:
    """What pcp-legalize makes of it."""
    module = parse(limit.text)
    pipeline(LEGAL).run(module)
    return module


@functools.cache
def compiled_together(target: str, flags: tuple[str, ...]) -> frozenset[str]:
    """The names of those for a target that compile as one module; else of none.

    Starting iree-compile, and linking, costs more than a program.
    """
    alike = [
        limit
        for limit in LIMITS
        if not limit.leaves.startswith(("stays", "an error: "))
        and (limit.target, common_flags(limit.text)) == (target, flags)
    ]
    every = parse("\n".join(renamed(legal(x), f"{x.name}_") for x in alike))
    try:
        alike[0].compile(target_text(every, find(target)).plain)
    except CompileError:
        return frozenset()
    return frozenset(limit.name for limit in alike)


@pytest.mark.slow  # each op's own tests compile it, too
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_pcp_legalize_leaves_what_the_table_says(limit: Limit) -> None:
    if limit.leaves.startswith("an error: "):
        advice = limit.leaves.removeprefix("an error: ")
        with pytest.raises(PassError, match=rf":\d+:\d+: .*{re.escape(advice)}"):
            legal(limit)
        return
    if limit.leaves.startswith("stays"):
        with pytest.raises(CompileError, match=re.escape(limit.says)):
            alone(limit)
    elif limit.name not in compiled_together(limit.target, common_flags(limit.text)):
        assert alone(limit)


def alone(limit: Limit) -> bytes:
    """What iree-compile makes of one that is legal."""
    return limit.compile(target_text(legal(limit), find(limit.target)).plain)
