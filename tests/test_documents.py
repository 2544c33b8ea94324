"""Every fenced block of every document is run, parsed, or held to what would run it.

A new block is run by its language, in a folder that looks like the clone. What cannot
run so stands in `INSTEAD`, with the reason and with what is checked in its place. A
`text` block is what the block above it prints, and in a page that teaches, one stands
below each command of ours. The blocks of a page in `IN_ORDER` run one after the other
in one folder. Of a page in `LONG` that is slow; before, its commands are parsed and its
Python is compiled.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.repository.block_runs import (
    LIMIT_S,
    READ_OR_RUN,
    RUN,
    is_printed,
    shell_variables,
)
from helpers.repository.commands import check, commands
from helpers.repository.installation import PROJECT, as_editable, bare
from helpers.repository.instead import (
    INSTEAD,
    TYPED,
    Instead,
    instead_of,
    typed,
    understood,
)
from helpers.repository.markdown import all_blocks
from helpers.repository.page_in_order import run_page
from helpers.repository.sources import ROOT

from pcp.errors import ConfigError
from pcp.tools.pages.fences import Block, blocks_of

BLOCKS = all_blocks()
BY_LANGUAGE = READ_OR_RUN | {"console": typed}
#: Pages that take seconds of a processor, and why.
LONG = {
    "docs/anatomy.md": "seven commands that compile",
    "docs/guide/08-partition.md": "it compiles for a mesh",
    "docs/guide/09-module.md": "it compiles",
    "docs/guide/10-homes.md": "it trains, and makes a run again",
    "docs/tutorials/a-worker-dies.md": "it trains twice",
    "docs/tutorials/jax.md": "JAX is imported",
    "docs/tutorials/pytorch.md": "torch is imported, and it trains",
    "docs/tutorials/serve-it.md": "it compiles, and a server answers",
    "docs/tutorials/spread-a-model.md": "four processes",
    "docs/tutorials/two-machines.md": "it trains",
}
IN_ORDER = (
    "docs/anatomy.md",
    *sorted(
        {
            block.file
            for block in BLOCKS
            if re.match(r"docs/(guide/\d|tutorials/)", block.file)
        }
    ),
)
PRINTED = "text"
#: Commands of ours in pages that teach, and why no output stands below.
UNSHOWN: tuple[Instead, ...] = ()
LINES = 300  # of an anatomy that a newcomer runs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Like the clone to look at; what is written stays here."""
    for name in ("autodiff", "benchmarks", "docs", "examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.parametrize(
    "block",
    [b for b in BLOCKS if b.file not in IN_ORDER and b.language != PRINTED],
    ids=str,
)
def test_a_block_works(block: Block, folder: Path) -> None:
    other = instead_of(block)
    assert block.language in BY_LANGUAGE, f"{block}: nothing runs {block.language!r}"
    if other:
        other.check(block, folder)
    else:
        works(block, folder)


def works(block: Block, folder: Path) -> None:
    """It runs, or is read, and prints what stands below it."""
    output = BY_LANGUAGE[block.language](block, folder)
    if shown := below(block, BLOCKS):
        is_printed(shown, str(output))


def below(block: Block, blocks: Sequence[Block]) -> Block | None:
    """What a block prints, as its page has it."""
    for one in blocks[blocks.index(block) + 1 :]:
        return one if (one.file, one.language) == (block.file, PRINTED) else None
    return None


def unshown(blocks: Sequence[Block]) -> list[Block]:
    """Those of a shell that run a command of ours, with no output below."""
    return [
        block
        for block in blocks
        if block.language == "bash" and not block.title
        if below(block, blocks) is None
        if any(words[0] in PROJECT["scripts"] for words in commands(block.text))
    ]


def test_a_page_that_teaches_shows_what_its_commands_print() -> None:
    pages = {*IN_ORDER, "README.md", "docs/tour.md"}
    found = unshown([one for one in BLOCKS if one.file in pages])
    missed = [str(b) for b in found if not any(one.fits(b) for one in UNSHOWN)]
    assert missed == []
    for entry in UNSHOWN:
        assert sum(map(entry.fits, found)) == 1, f"{entry.has} has an output"


def test_what_is_printed_stands_below_what_prints_it() -> None:
    above = [block for block in BLOCKS if below(block, BLOCKS)]
    assert {one.language for one in above} <= {*RUN}
    assert len(above) == sum(block.language == PRINTED for block in BLOCKS) > 40


def page(file: str) -> list[Block]:
    """Its blocks, in order."""
    return [one for one in BLOCKS if one.file == file]


@pytest.mark.parametrize("file", [one for one in IN_ORDER if one not in LONG])
def test_a_page_works_from_top_to_bottom(file: str, folder: Path) -> None:
    works_in_order(page(file), folder)


INSTALL = re.compile(r"`pip install '\.\[([\w,]+)\]'([ \w-]*)`")


def works_in_order(blocks: list[Block], folder: Path) -> None:
    """All of them run, and print what stands below them.

    Those of a tutorial with the packages that it says, and no others.
    """
    python, variables = Path(sys.executable), shell_variables()
    file = blocks[0].file
    if "/tutorials/" in file:
        said = INSTALL.search((ROOT / file).read_text())
        assert said is not None, f"{file} does not say what to install"
        extras, others = said[1].split(","), said[2].split()
        made = as_editable(bare(folder / "installed", extras, others))
        python, variables = made.python, made.environment()
    ran = dict(run_page(blocks, folder, variables, LIMIT_S, python))
    output = ""
    for block in blocks:
        if block in ran:
            output = ran[block]
        elif block.language == PRINTED:
            is_printed(block, output)
        else:
            BY_LANGUAGE[block.language](block, folder)


@pytest.mark.slow
@pytest.mark.parametrize("file", LONG)
def test_a_long_page_works_from_top_to_bottom(file: str, folder: Path) -> None:
    works_in_order(page(file), folder)


# In the anatomy, programs of Python stand in quotes, over lines: it only runs, slow.
@pytest.mark.parametrize("file", [one for one in LONG if one != "docs/anatomy.md"])
def test_a_long_page_is_understood(file: str) -> None:
    """Every command of ours is parsed by its parser, and every program compiles."""
    blocks = [one for one in page(file) if one.language in RUN]
    assert blocks
    for block in blocks:
        if block.language == "python":
            compile(block.text, str(block), "exec")
        elif block.language == "bash" and not block.title:
            for words in commands(block.text):
                if words[0] in PROJECT["scripts"]:
                    check(words)


def test_every_reason_has_its_block() -> None:
    files = {block.file for block in BLOCKS if block.language == "console"}
    for page_ in TYPED:
        assert any(file.startswith(page_) for file in files), page_


#: Where every block is run: no indented one, which nothing would collect.
FENCED = sorted(
    {*IN_ORDER, "README.md", "docs/index.md", "docs/guide/index.md", "docs/tour.md"}
)


def indented(text: str) -> list[int]:
    """The lines at which an indented block begins, outside of fences."""
    inside = {
        number
        for block in blocks_of("x.md", text)
        for number in range(block.line, block.line + block.text.count("\n") + 2)
    }
    lines = ["", *text.splitlines()]
    return [
        number
        for number in range(1, len(lines))
        if number not in inside and lines[number].startswith(("    ", "\t"))
        if lines[number].strip() and not lines[number - 1].strip()
    ]


@pytest.mark.parametrize("file", FENCED)
def test_every_block_has_a_fence(file: str) -> None:
    assert indented((ROOT / file).read_text()) == [], "write ```bash, or ```console"


def test_long_pages_are_there() -> None:
    assert {*LONG} <= {*IN_ORDER}


def test_the_anatomy_is_short() -> None:
    blocks = [one for one in BLOCKS if one.file == "docs/anatomy.md"]
    run = [one for one in blocks if one.language != "text"]
    assert 0 < sum(len(one.text.splitlines()) for one in run) <= LINES


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if (i := instead_of(b)) and i.slow], ids=str
)
def test_a_long_block_runs(block: Block, folder: Path) -> None:
    works(block, folder)


@pytest.mark.parametrize("entry", INSTEAD, ids=lambda entry: entry.has)
def test_what_is_not_run_is_there(entry: Instead) -> None:
    """One entry, one block: one that is left over would excuse a later block."""
    assert sum(map(entry.fits, BLOCKS)) == 1
    tests = (ROOT / "tests/test_readme.py").read_text()
    assert not entry.test or f"\ndef {entry.test}(" in tests


def unproved(text: str) -> list[str]:
    """Rows of tables of claims without one command that a parser understands.

    That paths are there holds `tests/architecture/test_paths.py`.
    """
    rows = re.findall(r"^\| (?!claim |-)(.*) \| (.*) \|$", text, re.MULTILINE)
    return [claim for claim, command in rows if not _is_a_proof(command)]


def _is_a_proof(cell: str) -> bool:
    code = re.fullmatch(r"`([^`]+)`", cell)
    found = commands(code[1]) if code else []
    if len(found) == 1 and found[0][0] == "pcp":
        check(found[0])
    return len(found) == 1 and found[0][0] in ("pcp", "pytest", "python")


def test_every_claim_has_its_command() -> None:
    text, _, _ = (ROOT / "docs/evidence.md").read_text().partition("## How fast")
    assert text.count("\n| ") > 30
    assert unproved(text) == []


# --- the guards bite ---


def test_an_indented_block_is_found() -> None:
    assert indented("a\n\n    pcp runs\n    pcp ui\n\n```bash\n\n    x\n```\n") == [3]
    assert indented("* a\n    b\n\n```python\ndef f():\n\n    x\n```\nend\n") == []


def test_what_is_typed_has_a_reason_and_is_understood(folder: Path) -> None:
    block = Block("docs/tour.md", 1, "console", "$ pcp runs x\nrun_a\n")
    typed(block, folder)
    for wrong in (
        replace(block, file="docs/data.md"),
        replace(block, text="$ pcp no-such-command\n"),
        replace(block, text="pcp runs x\n"),
    ):
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            typed(wrong, folder)


def test_a_command_without_its_output_is_found() -> None:
    text = "```bash\ncd x; pcp runs\n```\n\n```LANGUAGE\nrun_a\n```\n"
    shown = list(blocks_of("x.md", text.replace("LANGUAGE", PRINTED)))
    assert unshown(shown) == []
    other = list(blocks_of("x.md", text.replace("LANGUAGE", "python")))
    assert unshown(other) == other[:1]
    assert unshown([shown[0], replace(shown[1], file="y.md")]) == [shown[0]]
    assert unshown(list(blocks_of("x.md", "```bash\nkill 1\n```\n"))) == []


def test_lines_are_left_out() -> None:
    output = "one\ntwo\nthree\n"
    for text in ("one\n...\nthree\n", "...\ntwo\n...\nthree\n...\n", "one\n...\n"):
        is_printed(Block("x.md", 1, PRINTED, text), output)
    for text in ("three\n...\none\n", "one\n...\nfour\n", "two\n...\ntwo\n"):
        with pytest.raises(AssertionError):
            is_printed(Block("x.md", 1, PRINTED, text), output)


@pytest.mark.parametrize("cell", ["", "`runs/latest`", "`pytest a` and `pytest b`"])
def test_a_claim_without_a_command_is_found(cell: str) -> None:
    assert unproved(f"| claim | command |\n|---|---|\n| all is well | {cell} |") == [
        "all is well"
    ]


def test_documents_have_blocks() -> None:
    files = {block.file for block in BLOCKS}
    assert {"README.md", "docs/passes.md", "docs/dialect.md"} <= files
    assert len(BLOCKS) > 100


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("bash", "pcp inspect no-such-file.pcp\n"),
        ("bash", "pcp no-such-command | cat\n"),
        ("python", "import pcp\npcp.no_such_name\n"),
        ("mlir", '%y = "pcp.all_reduce"(%x) {axes = []} : (f32) -> f32\n'),
        ("mlir", "%y = stablehlo.no_such_op %x, ...\n"),
        ("json", "{,}\n"),
        ("", "pcp inspect m.pcp\n"),
    ],
)
def test_a_wrong_block_fails(language: str, text: str, folder: Path) -> None:
    with pytest.raises((AssertionError, ValueError)):
        BY_LANGUAGE[language](Block("x.md", 1, language, text), folder)


@pytest.mark.parametrize(
    "text",
    ["one", "one\nthree", "two\none", "one ... four\n", "three", "two", "one.two"],
)
def test_what_is_not_printed_is_seen(text: str) -> None:
    output = "  one two\nthree  four\nfive\n"
    is_printed(Block("x.md", 1, "text", "one two\nth... four\n"), output)
    with pytest.raises(AssertionError):
        is_printed(Block("x.md", 1, "text", text), output)


@pytest.mark.parametrize(
    "line",
    [
        "pcp train examples/demo.json --worker 2",
        "pcp trian examples/demo.json",
        "pcp --supervise -- --shepherd --confg examples/demo.json",
        "pcp-compile m.mlir --mode gradient --target cpu",
        "python benchmarks/no_such_script.py",
        "pytest tests/no_such_test.py",
        "make no-such-target",
        "curl somewhere",
    ],
)
def test_a_wrong_command_is_not_understood(line: str, folder: Path) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        understood(Block("x.md", 1, "bash", line), folder)


def test_fences() -> None:
    text = "a\n\n```bash\nx\n```\n\n* b\n\n  ```python\n  y\n  ```\n````\n```\n````\n"
    found = [(b.line, b.language, b.text) for b in blocks_of("f", text)]
    assert found == [(3, "bash", "x\n"), (9, "python", "  y\n"), (12, "", "```\n")]
    (titled,) = blocks_of("f", '```python title="a/b.py"\nx\n```\n')
    assert (titled.title, titled.text) == ("a/b.py", "x\n")
    with pytest.raises(ConfigError, match="never closed"):
        list(blocks_of("f", "```\nx\n"))
