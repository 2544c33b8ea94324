"""Gradient programs hold little beyond what JAX's hold, and nothing for nobody."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from pcp.autodiff.core import functions
from pcp.autodiff.passes.derivatives import Grad
from pcp.frontends.jax import from_jax
from pcp.passes.simplify.simplify import Simplify

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MOST = 1.05


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/autodiff.py as a module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    path = BENCHMARKS / "autodiff.py"
    spec = spec_from_file_location("autodiff_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # it counts in ten models of JAX
def test_sums_are_near_those_of_jax(benchmark: Any) -> None:
    """Operations of each program, and bytes of all ten together."""
    *rows, total = benchmark.counts(list(benchmark.PROGRAMS))
    assert len(rows) == 10
    assert all(row["flops_ratio"] <= MOST for row in rows), rows
    assert total["flops_ratio"] <= MOST
    assert total["bytes_ratio"] <= MOST


@pytest.mark.parametrize(("wrt", "products"), [((4,), 4), ((2,), 5), ((0, 2, 4), 8)])
def test_nothing_for_inactive_inputs(
    benchmark: Any, wrt: tuple[int, ...], products: int
) -> None:
    """Three layers: three products forward, and those that reach a wanted weight."""
    program = benchmark.PROGRAMS["mlp"]()
    module = from_jax(program.loss, program.weights, *program.data)
    Grad(wrt=wrt).run(module)
    Simplify().run(module)
    function = functions.find(module, "main_grad")
    body = [op.operation.name for op in functions.body(function).operations]
    assert body.count("stablehlo.dot_general") == products


def test_embeddings_are_scattered(benchmark: Any) -> None:
    """The table's gradient adds rows where they were read: no one-hot product."""
    program = benchmark.gpt(layers=1)
    module = from_jax(program.loss, program.weights, *program.data)
    Grad(wrt=(0,)).run(module)
    Simplify().run(module)
    *_, end = functions.body(functions.find(module, "main_grad")).operations
    source = end.operation.operands[1].owner.operation
    assert source.name == "stablehlo.scatter"
