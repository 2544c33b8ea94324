"""What pcp-remat saves is saved on IREE, not only in the prediction."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/remat.py as a module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = spec_from_file_location("remat_benchmark", BENCHMARKS / "remat.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "remat_benchmark", module)
    spec.loader.exec_module(module)
    return module


def saved(benchmark: Any, layers: int, rows: list[str]) -> list[dict[str, float]]:
    """The table of a small GPT; it raises unless the gradients are the same bits."""
    program = benchmark.gpt(layers, width=32, tokens=64, vocabulary=64)
    return benchmark.table(program, rows, 1)


@pytest.mark.slow
def test_twelve_layers_hold_at_most_two_fifths(benchmark: Any) -> None:
    (row,) = saved(benchmark, 12, ["policy=nothing_saveable"])
    assert row["flops_ratio"] <= 1.35
    assert row["ratio"] <= 0.4
    assert row["measured_ratio"] <= 0.4
    assert abs(row["predicted"] - row["measured"]) <= 0.15 * row["measured"]
