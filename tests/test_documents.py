"""Every fenced block of every document is run, parsed, or held to what would run it.

A new block is run by its language, in a folder that looks like the clone. What cannot
run so stands in `INSTEAD`, with the reason and with what is checked in its place. The
blocks of a page in `IN_ORDER` run one after the other in one folder, and a `text` block
of it is what the block above prints. Of a page in `LONG` that is slow; before, its
commands are parsed and its Python is compiled.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest
from helpers.repository.block_runs import (
    BY_LANGUAGE,
    LIMIT_S,
    RUN,
    is_printed,
    run_bash,
    run_command,
    shell_variables,
)
from helpers.repository.commands import check, commands
from helpers.repository.installation import PROJECT, as_editable, bare
from helpers.repository.markdown import all_blocks
from helpers.repository.mlir_fragments import problem
from helpers.repository.page_in_order import run_page
from helpers.repository.sources import ROOT

from pcp.compiler.cluster import Cluster
from pcp.compiler.sharding_file import Rules
from pcp.errors import ConfigError
from pcp.runtime.group.coordinator import Coordinator
from pcp.tools.pages.fences import Block, blocks_of
from pcp.training.config.experiment_file import (
    parse,
)

BLOCKS = all_blocks()
#: Pages that take seconds of a processor, and why.
LONG = {
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
LINES = 300  # of an anatomy that a newcomer runs


# --- what is checked instead ---
def understood(block: Block, folder: Path) -> None:
    """Each command by its real parser; scripts, tests and make's targets exist."""
    found = commands(block.text)
    assert found
    for words in found:
        check(words)


def elsewhere(block: Block, folder: Path) -> None:
    """`tests/test_readme.py` runs it, with more asked of it."""
    (test,) = [one.test for one in INSTEAD if one.fits(block)]
    tests = (ROOT / "tests/test_readme.py").read_text()
    assert re.search(rf"^def {test}\(", tests, re.MULTILINE)


def of_the_example(block: Block, folder: Path) -> None:
    """It stands in the example, which other tests load."""
    assert block.text in (ROOT / "examples/extensions/softcap.py").read_text()


def with_its_model(block: Block, folder: Path) -> None:
    """The user's own file is one of ours here; test_export.py exports the other."""
    (folder / "my_model.py").write_text(
        "import numpy as np\n"
        "def loss(w, x):\n    return ((x @ w) ** 2).mean()\n"
        "def example_arguments():\n"
        "    return np.ones((2, 3), np.float32), np.ones((4, 2), np.float32)\n"
    )
    understood(block, folder)
    _, _, own = block.text.partition(".safetensors\n")
    run_bash(replace(block, text=own), folder)
    assert "stablehlo.dot_general" in (folder / "loss.mlir").read_text()


MEMBER = """\
import numpy as np
from pcp.runtime import Communicator, ErrorFeedback
gradient, feedback = np.ones(4096, np.float32), ErrorFeedback()
def step(comm):
    return comm.all_reduce(np.ones(3))
"""
MEMBER_END = "assert np.allclose(gradient, 1, atol=1e-2)\ncomm.close()\n"


def among_members(block: Block, folder: Path) -> None:
    """Two members run it, at a coordinator of ours."""
    with Coordinator.listen("127.0.0.1:0", first=2) as here:
        assert '"coordinator:48148"' in block.text
        text = block.text.replace("coordinator:48148", here.address)
        code = MEMBER + text + MEMBER_END
        command = [sys.executable, "-c", code]
        members = [subprocess.Popen(command, cwd=folder) for _ in range(2)]
        try:
            assert [one.wait(60) for one in members] == [0, 0]
        finally:
            for one in members:
                one.kill()
                one.wait()


def entries_of(module: str) -> Callable[[Block, Path], None]:
    """Entries of a table or a list in that module, by the names that it has."""

    def evaluate(block: Block, folder: Path) -> None:
        names = dict(vars(import_module(module)))
        for line in block.text.splitlines():
            inside = f"{{{line}\n}}" if line.startswith('"') else f"[{line}\n]"
            assert eval(inside, names)

    return evaluate


def rule_from_outside(block: Block, folder: Path) -> None:
    """The names that a reader has of their own are given."""
    own = "def double_times(g, x): return g\ndef my_rule(at): return [at.g]\n"
    asked = "from pcp.autodiff.core.registry import find\nassert find('mine.square')\n"
    code = f"{own}{block.text}{asked}"
    run_command([sys.executable, "-c", code], folder)


def one_of_both(block: Block, folder: Path) -> None:
    """Ops on functions that a reader has: alone, each is well formed."""
    for line in block.text.splitlines():
        assert problem(line) is None


def sharding_file(block: Block, folder: Path) -> None:
    (folder / "rules.json").write_text(block.text)
    assert Rules.read(folder / "rules.json").tensors


def of_a_folder(block: Block, folder: Path) -> None:
    """An experiment that lacks its model alone, which --hf brings."""
    given = json.loads(block.text)
    assert parse({**given, "model_path": "m"}).outer_loop_steps
    for key in given:
        with pytest.raises(ConfigError, match=f"{key}: Field required"):
            parse({k: v for k, v in given.items() if k != key} | {"model_path": "m"})


def cluster_file(block: Block, folder: Path) -> None:
    """Read, and the least: without any of its keys it is refused or ambiguous."""
    (folder / "cluster.json").write_text(block.text)
    found = Cluster.read(folder / "cluster.json")
    assert len(found.devices) == 2
    for key in ("ordinal", "memory", "throughput", "membw"):
        content = json.loads(block.text)
        del content["devices"]["b"][key]
        (folder / "cluster.json").write_text(json.dumps(content))
        with pytest.raises(ConfigError, match=f"devices.b.{key}: "):
            Cluster.read(folder / "cluster.json")


@dataclass(frozen=True)
class Instead:
    """A block that contains `has`, why it does not run here, what is done instead.

    `slow` ones do run, under that mark; `test` names the one that runs it elsewhere.
    """

    file: str
    has: str
    why: str
    check: Callable[[Block, Path], None]
    slow: bool = False
    test: str = ""

    def fits(self, block: Block) -> bool:
        return block.file == self.file and self.has in block.text


CHAPTER = "pcp.autodiff.rules.elementwise"
README, TOUR = "README.md", "docs/tour.md"
RULES, MESHES = "docs/adding-a-rule.md", "docs/partitioning.md"
PLANNING = "docs/planning.md"
INSTEAD = (
    Instead(README, "make demo", "minutes: it installs, and trains", understood),
    Instead(README, "pcp init demo", "a minute of training", understood, slow=True),
    Instead(TOUR, "--target sm_90a   #", "20 s of compiling", understood, slow=True),
    Instead(TOUR, "pcp supervise", "a cluster with GPUs", understood),
    Instead(TOUR, "--mesh dp=2,tp=2", "a minute", understood, slow=True),
    Instead(
        TOUR,
        "pcp.from_jax",
        "its result is asked for",
        elsewhere,
        test="test_a_model_of_jax_is_compiled_and_differentiated",
    ),
    Instead(
        TOUR,
        "Communicator.connect",
        "it is started four times",
        elsewhere,
        test="test_four_processes_sum",
    ),
    Instead(TOUR, "Communicator.join", "it needs a coordinator", among_members),
    Instead("docs/exporting.md", "my_model.py", "a file is the user's", with_its_model),
    Instead("docs/extending.md", "EXTENSION =", "the end of a file", of_the_example),
    Instead("docs/exporting.md", '"my.txt"', "a file that pcp reads", of_a_folder),
    Instead("docs/training.md", '"my.txt"', "a file that pcp reads", of_a_folder),
    Instead(RULES, "Elementwise(", "a table's entry", entries_of(CHAPTER)),
    Instead(RULES, "Case(", "entries", entries_of("helpers.cases.elementwise")),
    Instead(RULES, 'register("mine.square', "rules are the user's", rule_from_outside),
    Instead(RULES, "pcp.custom_jvp", "one or the other", one_of_both),
    Instead(
        "docs/heterogeneous.md",
        "vector_add.pcp --inputs random",
        "three processes, as in test_run_schedule.py",
        understood,
        slow=True,
    ),
    Instead(MESHES, '"layers.*.qkv"', "a file that pcp reads", sharding_file),
    Instead(PLANNING, '"devices"', "a file that pcp reads", cluster_file),
    Instead(MESHES, "test_jax_sharding.py", "it runs anyway, as a test", understood),
    Instead(MESHES, "zero_memory.py", "minutes of measuring", understood),
    Instead(MESHES, "uneven.py", "minutes of measuring", understood),
    Instead(MESHES, "--target cpu:host --target cpu", "a user's model", understood),
    Instead(MESHES, "test_run_unlike.py", "minutes of tests", understood),
)


def instead_of(block: Block) -> Instead | None:
    found = [one for one in INSTEAD if one.fits(block)]
    assert len(found) <= 1, f"{block}: two entries of INSTEAD fit"
    return found[0] if found else None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Like the clone to look at; what is written stays here."""
    for name in ("autodiff", "benchmarks", "docs", "examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.parametrize(
    "block", [one for one in BLOCKS if one.file not in IN_ORDER], ids=str
)
def test_a_block_works(block: Block, folder: Path) -> None:
    other = instead_of(block)
    assert block.language in BY_LANGUAGE, f"{block}: nothing runs {block.language!r}"
    (other.check if other else BY_LANGUAGE[block.language])(block, folder)


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
        elif block.language == "text":
            is_printed(block, output)
        else:
            BY_LANGUAGE[block.language](block, folder)


@pytest.mark.slow
@pytest.mark.parametrize("file", LONG)
def test_a_long_page_works_from_top_to_bottom(file: str, folder: Path) -> None:
    works_in_order(page(file), folder)


@pytest.mark.parametrize("file", LONG)
def test_a_long_page_is_understood(file: str) -> None:
    """Every command of ours is parsed by its parser, and every program compiles."""
    blocks = [one for one in page(file) if one.language in RUN]
    assert blocks
    for block in blocks:
        if block.language == "python":
            compile(block.text, str(block), "exec")
        elif not block.title:
            for words in commands(block.text):
                if words[0] in PROJECT["scripts"]:
                    check(words)


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
    BY_LANGUAGE[block.language](block, folder)


@pytest.mark.parametrize("entry", INSTEAD, ids=lambda entry: entry.has)
def test_what_is_not_run_is_there(entry: Instead) -> None:
    """One entry, one block: one that is left over would excuse a later block."""
    assert sum(map(entry.fits, BLOCKS)) == 1


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
