"""Sums of data alone: microbatches divide by the count of the whole batch."""

import numpy as np
import pytest
from helpers.oracles import pipelines
from helpers.oracles.spmd import add_mesh

from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations

BATCH, WIDTH = 16, 3
CUT = ', pcp.sharding = #pcp.sharding<@m, [["dp"]{}], [], []>'


def _text(*, cut: bool) -> str:
    """Labels below zero do not count: a mean of squares over those that do.

    In two layers; `cut`: the batch along dp.
    """
    rows, table = f"tensor<{BATCH}x{WIDTH}xf32>", f"tensor<{WIDTH}x{WIDTH}xf32>"
    kept, bits = f"tensor<{BATCH}xf32>", f"tensor<{BATCH}xi1>"
    ints = f"tensor<{BATCH}xi32>"
    x, k = (CUT.format(", []"), CUT.format("")) if cut else ("", "")
    dims = "contracting_dims = [1] x [0]"
    return f"""
func.func @main(%x: {rows} {{pcp.name = "x", pcp.role = "data"{x}}},
    %k: {ints} {{pcp.name = "k", pcp.role = "data"{k}}},
    %a: {table} {{pcp.name = "a", pcp.role = "param"}},
    %b: {table} {{pcp.name = "b", pcp.role = "param"}}) -> tensor<f32> {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %none = stablehlo.constant dense<0> : {ints}
  %zeros = stablehlo.constant dense<0.0> : {kept}
  %h = stablehlo.dot_general %x, %a, {dims} : ({rows}, {table}) -> {rows}
  %t = stablehlo.tanh %h {{pcp.stage = 0}} : {rows}
  %y = stablehlo.dot_general %t, %b, {dims} {{pcp.stage = 1}}
    : ({rows}, {table}) -> {rows}
  %q = stablehlo.multiply %y, %y : {rows}
  %r = stablehlo.reduce(%q init: %z) applies stablehlo.add across dimensions = [1]
    : ({rows}, tensor<f32>) -> {kept}
  %counts = stablehlo.compare GE, %k, %none : ({ints}, {ints}) -> {bits}
  %m = stablehlo.select %counts, %r, %zeros : {bits}, {kept}
  %s = stablehlo.reduce(%m init: %z) applies stablehlo.add across dimensions = [0]
    : ({kept}, tensor<f32>) -> tensor<f32>
  %one = stablehlo.convert %counts : ({bits}) -> {kept}
  %n = stablehlo.reduce(%one init: %z) applies stablehlo.add across dimensions = [0]
    : ({kept}, tensor<f32>) -> tensor<f32>
  %l = stablehlo.divide %s, %n : tensor<f32>
  return %l : tensor<f32>
}}"""


def _expected(x, k, a, b) -> dict[tuple[str, str], np.ndarray]:
    """The loss and its gradients, as written on paper."""
    t = np.tanh(x @ a)
    y = t @ b
    weight = (k >= 0) / (k >= 0).sum()
    dy = 2 * y * weight[:, None]
    dh = dy @ b.T * (1 - t**2)
    return {
        ("loss", "loss"): (weight * (y**2).sum(1)).sum(),
        ("grad", "a"): x.T @ dh,
        ("grad", "b"): t.T @ dy,
    }


def _staged(axes: dict[str, int]) -> ir.Module:
    module = parse(_text(cut="dp" in axes))
    with module.context:
        add_mesh(module, axes)
    stage = "pcp-stage{func=grad microbatches=4}"
    passes = (
        "pcp-grad{func=main name=grad},pcp-simplify,cse,"
        f"{stage},pcp-schedule{{func=grad kind=1f1b}}"
    )
    pipeline(f"builtin.module({passes})").run(module)
    for op in list(module.body.operations):
        if op.operation.name == "func.func" and op.name.value == "main":
            op.operation.erase()
    lower = "pcp-lower-schedule,pcp-verify-plan"
    pipeline(f"builtin.module({lower})").run(module)
    return module


@pytest.mark.parametrize("axes", [{"pp": 2}, {"pp": 2, "dp": 2}], ids=str)
def test_a_mean_over_what_counts_is_that_of_the_batch(axes: dict[str, int]) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH, WIDTH)).astype(np.float32)
    a, b = random.normal(size=(2, WIDTH, WIDTH)).astype(np.float32)
    k = random.integers(-2, 4, BATCH).astype(np.int32)
    k[:4] = -1  # one microbatch has nothing that counts
    module = _staged(axes)
    given = {("data", "x"): x, ("data", "k"): k, ("param", "a"): a, ("param", "b"): b}
    found = pipelines.run_mixed(module, "grad", given)
    expected = _expected(*(v.astype(np.float64) for v in (x, k, a, b)))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


def test_devices_count_together_once() -> None:
    """Not in each task that divides: 4 microbatches, and the loss."""
    module = _staged({"pp": 2, "dp": 2})
    with module.context:
        sums = [op for op in operations(module) if op.name == "pcp.all_reduce"]
    scalars = [op for op in sums if not ir.RankedTensorType(op.results[0].type).rank]
    assert len(scalars) == 2 * 2  # the count and the loss, on two devices
