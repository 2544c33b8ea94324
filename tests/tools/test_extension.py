"""Extensions as their authors meet them: by `--load`, by entry point, in Python.

What is loaded stays for a process, so each command here is one.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.models.expanded_training import in_parallel
from helpers.repository.sources import ROOT
from helpers.worlds.bundle_runs import ran

from pcp.bundle import Bundle
from pcp.errors import ConfigError
from pcp.runtime.program.executor import Program
from pcp.tools import extension

EXAMPLE = ROOT / "examples" / "extensions" / "softcap.py"
CAP = 30.0

MODEL = """func.func @main(
    %w: tensor<3x4xf32> {pcp.name = "w", pcp.role = "param"},
    %x: tensor<4xf32> {pcp.name = "x", pcp.role = "data"}) -> tensor<f32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.dot_general %w, %x, contracting_dims = [1] x [0]
    : (tensor<3x4xf32>, tensor<4xf32>) -> tensor<3xf32>
  %1 = "example.softcap"(%0) : (tensor<3xf32>) -> tensor<3xf32>
  %2 = stablehlo.reduce(%1 init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<3xf32>, tensor<f32>) -> tensor<f32>
  return %2 : tensor<f32>
}
"""
HEAD = "import pcp\nfrom pcp.passes import Pass\n"


def run(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """A Python command in `folder`."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def refused(folder: Path, text: str) -> str:
    """What pcp-opt says of an extension with this text."""
    (folder / "mine.py").write_text(text)
    done = run(folder, "-m", "pcp.tools.opt", "--load", "mine.py", "--list-passes")
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The model with an op, an optimizer and an algorithm of the example's."""
    folder = tmp_path_factory.mktemp("extension")
    (folder / "model.mlir").write_text(MODEL)
    flags = ["--load", EXAMPLE, "--target", "cpu", "-o", "model.pcp"]
    methods = ["--optimizer", "signum{lr=0.1,beta=0.8}", "--algorithm", "damped"]
    done = run(folder, "-m", "pcp.tools.compile", "model.mlir", *flags, *methods)
    assert done.returncode == 0, done.stderr
    return Bundle.read(folder / "model.pcp")


def test_an_op_is_differentiated_and_lowered(trained: Bundle) -> None:
    generator = np.random.default_rng(0)
    w = generator.normal(scale=20, size=(3, 4)).astype(np.float32)
    x = generator.normal(size=4).astype(np.float32)
    with Program.load(trained) as program:
        loss, gradient = program["grad"](w, x)[:2]
    bounded = np.tanh(w.astype(np.float64) @ x / CAP)
    np.testing.assert_allclose(loss, CAP * bounded.sum(), rtol=1e-5)
    np.testing.assert_allclose(gradient, np.outer(1 - bounded**2, x), rtol=2e-5)


def test_an_optimizer_trains(trained: Bundle) -> None:
    generator = np.random.default_rng(1)
    w = generator.normal(size=(3, 4)).astype(np.float32)
    momentum, wanted = np.zeros((3, 4)), w.astype(np.float64)
    with Program.load(trained) as program:
        apply = program["apply"]
        state = [
            np.zeros(t.shape, {"i32": np.int32}.get(t.dtype, np.float32))
            for t in apply.signature.inputs[2:]
        ]
        for _ in range(3):
            gradient = generator.normal(size=(3, 4)).astype(np.float32)
            w, *state = apply(w, gradient, *state)
            momentum = 0.8 * momentum + 0.2 * gradient
            wanted -= 0.1 * np.sign(momentum)
    np.testing.assert_allclose(w, wanted, atol=1e-6)


def test_an_algorithm_joins_workers(trained: Bundle) -> None:
    anchor = np.ones((3, 4), np.float32)
    tokens = [1, 3]

    def work(loaded: Program, rank: int) -> np.ndarray:
        own = anchor - np.float32(rank + 1)
        return loaded["outer_step"](anchor, own, np.float32(tokens[rank]))

    for found in in_parallel(trained, 2, work):
        np.testing.assert_allclose(found, anchor - 0.5 * (1 + 3 * 2) / 4, rtol=1e-6)


def test_a_package_is_loaded_without_a_flag(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text())
    info = tmp_path / "mine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pcp.extensions]\nmine = mine:EXTENSION\n")
    (tmp_path / "model.mlir").write_text(MODEL)
    script = "import pcp; m = pcp.load('model.mlir')"
    script += "; print(pcp.run_passes(m, 'lower-example'))"
    done = run(tmp_path, "-c", script)
    assert done.returncode == 0, done.stderr
    assert "stablehlo.tanh" in done.stdout


MATRICES = """
from dataclasses import dataclass
from pcp.dialect import hlo
from pcp.passes.core.rewriting import before, operations, replace

@dataclass(frozen=True)
class LowerMatrices(Pass):
    "Custom calls of @product as dot products."

    name = "lower-matrices"

    def run(self, module):
        for op in operations(module):
            if op.name == "stablehlo.custom_call":
                with before(op):
                    replace(op, [hlo.dot_general(*op.operands, contract=([1], [0]))])

EXTENSION = pcp.Extension(
    passes=(LowerMatrices,),
    lowering=("lower-matrices",),
    sharding={"custom_call:product": "([i, j], [j, k])->([i, k]) reduction={j}"},
)
"""
PRODUCTS = """
"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"} : () -> ()
func.func @main(
    %a: tensor<8x64xf32>
      {pcp.name = "a", pcp.sharding = #pcp.sharding<@m, [[], ["x"]], [], []>},
    %b: tensor<64x7xf32>
      {pcp.name = "b", pcp.sharding = #pcp.sharding<@m, [["x"], []], [], []>},
    %c: tensor<7x3xf32> {pcp.name = "c"}) -> (tensor<8x3xf32> {pcp.name = "y"}) {
  %0 = stablehlo.custom_call @product(%a, %b)
    : (tensor<8x64xf32>, tensor<64x7xf32>) -> tensor<8x7xf32>
  %1 = stablehlo.custom_call @product(%0, %c)
    : (tensor<8x7xf32>, tensor<7x3xf32>) -> tensor<8x3xf32>
  return %1 : tensor<8x3xf32>
}
"""


@pytest.mark.slow  # four commands
def test_a_sharding_rule_cuts_an_op_of_an_extension(tmp_path: Path) -> None:
    """Two members each multiply their half, and add what they have."""
    (tmp_path / "mine.py").write_text(HEAD + MATRICES)
    (tmp_path / "model.mlir").write_text(PRODUCTS)
    flags = ["--load", "mine.py", "--target", "cpu", "-o", "model.pcp"]
    done = run(tmp_path, "-m", "pcp.tools.compile", "model.mlir", *flags)
    assert done.returncode == 0, done.stderr
    manifest = Bundle.read(tmp_path / "model.pcp").manifest
    assert {c.kind for c in manifest.all_collectives()} == {"all_reduce"}
    random = np.random.default_rng(0)
    shapes = {"a": (8, 64), "b": (64, 7), "c": (7, 3)}
    given = {n: random.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    found = ran(tmp_path / "model.pcp", given)
    wanted = given["a"].astype(np.float64) @ given["b"] @ given["c"]
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-4)


def test_a_sharding_rule_is_for_ops_without_one(tmp_path: Path) -> None:
    text = HEAD + 'EXTENSION = pcp.Extension(sharding={"stablehlo.add": "([])->([])"})'
    assert "stablehlo.add has a sharding rule already" in refused(tmp_path, text)


def test_an_op_that_nobody_lowers_names_the_way(tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text(MODEL)
    done = run(tmp_path, "-m", "pcp.tools.opt", "model.mlir")
    assert done.returncode == 1
    assert "model.mlir:7:25: " in done.stderr
    assert "--load" in done.stderr


@pytest.mark.slow  # pcp-compile refuses it; pcp-opt does above
def test_an_op_that_stays_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text(MODEL)
    text = EXAMPLE.read_text().replace('lowering=("lower-example",),', "")
    (tmp_path / "mine.py").write_text(text)
    flags = ["--target", "cpu", "--mode", "forward", "--load", "mine.py"]
    done = run(tmp_path, "-m", "pcp.tools.compile", "model.mlir", *flags)
    assert done.returncode == 1
    assert "model.mlir:7:8: example.softcap: no pass has made StableHLO" in done.stderr


def test_a_file_that_is_missing_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^extension .*/no\.py: no such file$"):
        extension.load(tmp_path / "no.py")


def test_an_experiment_names_extensions(tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text(MODEL)
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text())
    values = {
        "model_path": "model.mlir",
        "data_path": "builtin:python-docs",
        "learning_rate": 0.1,
        "tau": 2,
        "outer_loop_steps": 2,
        "optimizer": "signum{beta=0.8}",
        "algorithm": "damped",
        "extensions": ["mine.py"],
    }
    (tmp_path / "x.json").write_text(json.dumps(values))
    script = """from pcp.tools.support.training_job import *
experiment = read_experiment("x.json")
print(optimizer_text(experiment), algorithm_text(experiment), *experiment.extensions)"""
    done = run(tmp_path, "-c", script)
    assert done.returncode == 0, done.stderr
    optimizer, algorithm, path = done.stdout.split()
    assert optimizer.startswith("signum{beta=0.8,lr=0.1,")
    assert (algorithm, path) == ("damped", str(tmp_path / "mine.py"))


def test_a_file_without_an_extension(tmp_path: Path) -> None:
    assert "mine.py: it has no EXTENSION = pcp.Extension(...)" in refused(tmp_path, "")


def test_a_file_that_fails(tmp_path: Path) -> None:
    assert "mine.py: ZeroDivisionError: division by zero" in refused(tmp_path, "1 / 0")


@pytest.mark.slow  # as a rule that is taken
def test_a_name_that_is_taken(tmp_path: Path) -> None:
    text = """class Mine(Pass):
    name = "cse"
EXTENSION = pcp.Extension(passes=(Mine,))
"""
    assert "name='cse' must be a name of its own" in refused(tmp_path, HEAD + text)


@pytest.mark.slow  # as a rule that is taken
def test_a_kind_that_is_taken(tmp_path: Path) -> None:
    text = """from pcp.passes.training.optimizers.spec import Optimizer
class Mine(Optimizer):
    kind = "adamw"
EXTENSION = pcp.Extension(optimizers={Mine: None})
"""
    assert "adamw is already a name, of <class" in refused(tmp_path, HEAD + text)


@pytest.mark.slow  # a rule that is taken is below
def test_a_dialect_that_is_taken(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(EXAMPLE.read_text())
    text = """from pcp.dialect.bindings import ext
class Mine(ext.Dialect, name="{}"):
    pass
EXTENSION = pcp.Extension(dialects=(Mine,))
"""
    for name in ("pcp", "stablehlo"):
        said = refused(tmp_path, HEAD + text.format(name))
        assert f"dialect {name!r} is there already" in said
    (tmp_path / "mine.py").write_text(HEAD + text.format("example"))
    both = ["--load", "first.py", "--load", "mine.py", "--list-passes"]
    done = run(tmp_path, "-m", "pcp.tools.opt", *both)
    assert (done.returncode, done.stdout) == (1, "")
    assert "mine.py: dialect 'example' is there already" in done.stderr


def test_a_rule_that_is_taken(tmp_path: Path) -> None:
    text = """from pcp.autodiff.core.kinds import Elementwise
EXTENSION = pcp.Extension(rules={"stablehlo.tanh": Elementwise(lambda g, x, y: g)})
"""
    said = refused(tmp_path, HEAD + text)
    assert "stablehlo.tanh has a derivative rule already" in said


def test_what_is_no_rule(tmp_path: Path) -> None:
    text = "EXTENSION = pcp.Extension(rules={'mine.op': 3})"
    assert "mine.op: int is no derivative rule" in refused(tmp_path, HEAD + text)


@pytest.mark.slow  # as a file that fails
def test_a_file_that_exits(tmp_path: Path) -> None:
    assert "mine.py: SystemExit: 3" in refused(tmp_path, "raise SystemExit(3)")


@pytest.mark.slow  # a command more
def test_a_dataclass_with_annotations_as_text(tmp_path: Path) -> None:
    text = "from __future__ import annotations\n" + EXAMPLE.read_text()
    (tmp_path / "mine.py").write_text(text)
    words = ["-m", "pcp.tools.opt", "--load", "mine.py", "--list-passes"]
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr


def test_a_pipeline_without_its_pass(tmp_path: Path) -> None:
    text = "EXTENSION = pcp.Extension(lowering=('lower-mine',))"
    assert "no pass named 'lower-mine'" in refused(tmp_path, HEAD + text)


def test_a_dollar_in_a_pipeline_stands_for_itself(tmp_path: Path) -> None:
    text = "EXTENSION = pcp.Extension(lowering=('pcp-grad{func=$entry of=$x}',))"
    assert "unknown option 'of'" in refused(tmp_path, HEAD + text)
