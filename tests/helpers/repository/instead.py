"""What is checked of a block of a document that does not run where it stands.

`INSTEAD` has an entry for each, with the reason. A block without one is run.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import pytest
from helpers.repository.block_runs import run_bash, run_command
from helpers.repository.commands import check, commands
from helpers.repository.mlir_fragments import problem
from helpers.repository.sources import ROOT

from pcp.compiler.cluster import Cluster
from pcp.compiler.sharding_file import Rules
from pcp.errors import ConfigError
from pcp.runtime.group.coordinator import Coordinator
from pcp.tools.pages.fences import Block
from pcp.training.config.experiment_file import parse


def understood(block: Block, folder: Path) -> None:
    """Each command by its real parser; scripts, tests and make's targets exist."""
    found = commands(block.text)
    assert found
    for words in found:
        check(words)


def typed(block: Block, folder: Path) -> None:
    """What stands behind `$ ` is understood; `TYPED` says why it does not run."""
    assert any(block.file.startswith(page) for page in TYPED), f"{block}: run it"
    lines = block.text.splitlines()
    understood(replace(block, text="\n".join(typed_in(lines))), folder)


def typed_in(lines: Sequence[str]) -> list[str]:
    """The commands of a `console` block; its other lines are what they print."""
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


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


#: Pages with `console` blocks, and why what a reader types there does not run here.
TYPED = {
    "docs/guide/": "the reader's own answers; or the homes of two people, of which the "
    "page's other blocks make one",
    "docs/tour.md": "machines with GPUs",
    "docs/tutorials/two-machines.md": "two machines, of which the page's other blocks "
    "make one",
}
CHAPTER = "pcp.autodiff.rules.elementwise"
README, TOUR = "README.md", "docs/tour.md"
RULES, MESHES = "docs/adding-a-rule.md", "docs/partitioning.md"
PLANNING = "docs/planning.md"
INSTEAD = (
    Instead(
        README,
        "make demo",
        "minutes: it trains",
        understood,
        test="test_make_demo_trains",
    ),
    Instead(README, "pcp init demo", "a minute of training", understood, slow=True),
    Instead(TOUR, "--target sm_90a   #", "20 s of compiling", understood, slow=True),
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
    Instead(
        "docs/index.md",
        "pcp doctor --for worker",
        "seconds of measuring, as in test_install.py",
        understood,
        slow=True,
    ),
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
    Instead(
        MESHES,
        "--target cpu:host --target cpu",
        "a user's model, as in test_run_unlike.py",
        understood,
    ),
    Instead(MESHES, "test_run_unlike.py", "minutes of tests", understood),
)


def instead_of(block: Block) -> Instead | None:
    found = [one for one in INSTEAD if one.fits(block)]
    assert len(found) <= 1, f"{block}: two entries of INSTEAD fit"
    return found[0] if found else None
