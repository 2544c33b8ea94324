"""pcp-kernels: sums over the first dims of both operands, and who keeps IREE's code."""

import numpy as np
import pytest
from helpers.servers.iree_server import Iree

from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations
from pcp.passes.kernels import objects, own_table, processors
from pcp.passes.kernels.own_kernels import OwnKernels

SET = "x86-64-v3"
HERE = objects.CONTAINED.get(processors.instruction_set("host"), ())

#: Depth, rows, columns: one step and part to several, tails of each and all.
SHAPES = (
    (128, 64, 64),
    (192, 132, 256),
    (193, 133, 47),
    (400, 16, 300),
    (577, 265, 301),
    (250, 403, 16),
    (131, 65, 1030),
)


def _function(name: str, x: str, g: str, dims: str, result: str) -> str:
    x, g, result = (f"tensor<{s}xf32>" for s in (x, g, result))
    return f"""
func.func @{name}(%x: {x}, %g: {g}) -> {result} {{
  %0 = stablehlo.dot_general %x, %g, contracting_dims = {dims} x {dims}
    : ({x}, {g}) -> {result}
  return %0 : {result}
}}"""


@pytest.mark.skipif(SET not in HERE, reason=f"needs {SET}")
def test_same_sums(iree: Iree) -> None:
    random = np.random.default_rng(0)
    texts, calls = [], {}
    for number, (depth, rows, columns) in enumerate(SHAPES):
        sizes = f"{depth}x{rows}", f"{depth}x{columns}", "[0]", f"{rows}x{columns}"
        texts.append(_function(f"f{number}", *sizes))
        calls[f"f{number}"] = [
            random.normal(size=(depth, n)).astype(np.float32) for n in (rows, columns)
        ]
    texts.append(_function("tokens", "3x50x64", "3x50x70", "[0, 1]", "64x70"))
    calls["tokens"] = [
        random.normal(size=(3, 50, n)).astype(np.float32) for n in (64, 70)
    ]
    module = parse("".join(texts))
    OwnKernels(set=SET).run(module)
    names = [op.name for op in operations(module)]
    assert names.count("flow.dispatch") == len(calls)
    for name, got in zip(calls, iree.run_all(str(module), calls), strict=True):
        assert not isinstance(got, str), got
        x, g = (a.reshape(-1, a.shape[-1]).astype(np.float64) for a in calls[name])
        bound = len(x) * 2.0**-24 * (np.abs(x).T @ np.abs(g))
        assert np.all(np.abs(got[0] - x.T @ g) <= bound), name


@pytest.mark.skipif(SET not in HERE, reason=f"needs {SET}")
def test_what_is_not_finite_stays_so(iree: Iree) -> None:
    """And where it stands: zeros behind a tail do not spread it."""
    depth, rows, columns = 200, 133, 47
    x = np.ones((depth, rows), np.float32)
    g = np.ones((depth, columns), np.float32)
    x[3, 132], g[199, 46] = np.inf, np.nan
    sizes = f"{depth}x{rows}", f"{depth}x{columns}", "[0]", f"{rows}x{columns}"
    module = parse(_function("main", *sizes))
    OwnKernels(set=SET).run(module)
    ((got,),) = iree.run_all(str(module), {"main": [x, g]})
    with np.errstate(invalid="ignore"):  # as it should be
        wanted = x.T @ g
    np.testing.assert_array_equal(got, wanted)


def test_parts_cover_the_result_and_fit_the_kernel() -> None:
    random = np.random.default_rng(1)
    for rows, columns in random.integers(16, 3000, (300, 2)).tolist():
        height, width = own_table.part_of(rows, columns)
        assert 0 < height <= 132, (rows, columns)
        assert 0 < width <= 256, (rows, columns)
        assert height % 12 == 0, (rows, columns)


KEPT = {
    "other form": (SET, "256x64", "256x256", "[0]", "[1]"),
    "few terms": (SET, "100x64", "100x64", "[0]", "[0]"),
    "few sums": (SET, "512x32", "512x32", "[0]", "[0]"),
    "a narrow result": (SET, "512x8", "512x800", "[0]", "[0]"),
    "other registers": ("x86-64-v4", "512x64", "512x64", "[0]", "[0]"),
}


@pytest.mark.parametrize("case", KEPT)
def test_kept(case: str) -> None:
    instructions, left, right, first, second = KEPT[case]
    rows = left.split("x")[first == "[0]"]
    columns = right.split("x")[second == "[0]"]
    module = parse(f"""
func.func @main(%x: tensor<{left}xf32>, %y: tensor<{right}xf32>)
    -> tensor<{rows}x{columns}xf32> {{
  %0 = stablehlo.dot_general %x, %y, contracting_dims = {first} x {second}
    : (tensor<{left}xf32>, tensor<{right}xf32>) -> tensor<{rows}x{columns}xf32>
  return %0 : tensor<{rows}x{columns}xf32>
}}""")
    before = str(module)
    OwnKernels(set=instructions).run(module)
    assert str(module) == before
