"""benchmarks/torture.py: other people's programs, compiled, against JAX."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]

#: What a program may come to: JAX's numbers, or an error where IREE has one, too.
GOOD = {"equal", "skipped", "iree", "both"}

PROGRAM = """
module @jit_main {
  func.func @main(%x: tensor<4x6xf32>) -> tensor<4x6xf32> {
    %0 = stablehlo.sine %x : tensor<4x6xf32>
    %1 = stablehlo.cosine %0 : tensor<4x6xf32>
    %2 = stablehlo.tanh %1 : tensor<4x6xf32>
    %3 = stablehlo.add %2, %0 : tensor<4x6xf32>
    return %3 : tensor<4x6xf32>
  }
}
"""


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.fixture
def comparison(benchmarks: None) -> ModuleType:
    import torture_comparison

    return torture_comparison


def _judged(path: Path, *options: object) -> list[dict]:
    """The lines of a run of the command."""
    command = [sys.executable, ROOT / "benchmarks" / "torture.py", "--keep", path]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    given = [*command, "--turns", "--cache", os.environ["PCP_CACHE"], *options]
    done = subprocess.run(
        list(map(str, given)), capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow  # the command imports JAX and compiles each
@pytest.mark.parametrize("size", [4, 60])
def test_a_sample(tmp_path: Path, size: int) -> None:
    """Of sixty it is slow: both targets compile each for half a second."""
    lines = _judged(tmp_path / "kept.jsonl", "--sample", size)
    assert len(lines) == size
    bad = [line for line in lines if line["outcome"] not in GOOD]
    assert not bad, bad
    assert sum(line["outcome"] == "equal" for line in lines) >= size * 5 / 6


@pytest.mark.slow  # three starts of the command
def test_a_run_goes_on(tmp_path: Path) -> None:
    kept = tmp_path / "kept.jsonl"
    options = ("--sections", "ops", "--only", "ops neg_float32_3$")
    assert _judged(kept, *options) == _judged(kept, *options)
    (again,) = {line["name"] for line in _judged(kept, *options, "--again", "equal")}
    assert again == "neg_float32_3"


@pytest.mark.slow  # test_borders.py starts loops from a constant key
def test_a_loop_that_starts_from_constants_alone(tmp_path: Path) -> None:
    """IREE hoisted what it starts from, and the call ended."""
    name = "lax random_uniform_shape_float16_$"
    options = ("--sections", "lax", "--only", name, "--targets", "cpu:host")
    (line,) = _judged(tmp_path / "kept.jsonl", *options)
    assert line["outcome"] == "equal"


@pytest.mark.slow
def test_all_of_it(tmp_path: Path) -> None:
    """Hours: `python benchmarks/torture.py --keep FILE` can be interrupted."""
    lines = _judged(tmp_path / "kept.jsonl")
    assert {line["outcome"] for line in lines} <= GOOD


def test_wrong_numbers_are_found(comparison: ModuleType) -> None:
    right = np.array([1.0, np.inf, np.nan, -1000.0], np.float32)
    assert not comparison.difference([right], [right], {})
    for i, wrong in enumerate((1.0001, -np.inf, 0.0, -1000.1)):
        ours = right.copy()
        ours[i] = wrong
        found = comparison.difference([ours], [right], {})
        assert found.startswith("result 0: 1 of 4 elements")
    assert comparison.difference([right], [right.astype(np.float64)], {})
    three, four = (np.full(1, n, np.int32) for n in (3, 4))
    assert comparison.difference([three], [four], {})


def test_an_unstable_sort_may_exchange_equal_keys_alone(
    comparison: ModuleType,
) -> None:
    """Rows stay together, and no key moves."""
    same = comparison.unstable(0, 1)
    keys, rest = np.array([1, 1, 2]), np.array([5.0, 7.0, 6.0])
    assert not same([keys, rest[[1, 0, 2]]], [keys, rest])
    assert "result 1" in same([keys, rest[[2, 1, 0]]], [keys, rest])
    assert "result 0" in same([keys[::-1], rest[::-1]], [keys, rest])


def test_a_failure_is_reduced_to_its_op(benchmarks: None) -> None:
    import torture_reduce

    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    case = torture_reduce.Case(PROGRAM, [x])
    small = torture_reduce.reduced(case, lambda c: "stablehlo.cosine" in c.text)
    assert small.text.count(" = stablehlo.") == 1
    assert "tensor<1x1xf32>" in small.text
    kept = torture_reduce.reduced(
        case, lambda c: "cosine" in c.text and "tensor<4x6xf32>" in c.text
    )
    np.testing.assert_allclose(kept.arguments[0], np.sin(x), rtol=1e-6)
