"""Products of integers with a scale for each group: by our own kernels and by IREE."""

import numpy as np
import pytest
from helpers.servers.iree_server import Iree

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.frontends.decoders import stored
from pcp.passes.core.rewriting import operations
from pcp.passes.kernels import objects, processors
from pcp.passes.kernels.own_kernels import OwnKernels
from pcp.serving import quantized

HERE = objects.CONTAINED.get(processors.instruction_set("host"), ())

#: Rows of x, columns, depth: whole groups and panels, and filled up; more groups than
#: a kernel takes at a time.
SHAPES = ((1, 160, 128), (3, 40, 100), (8, 16, 4200), (21, 97, 64))


def _text(name: str, shape: tuple[int, int, int], kind: str) -> str:
    """A function of x, panels and scales that returns zeros."""
    rows, columns, depth = shape
    panels, groups = -(-columns // 16), -(-depth // 32)
    quads = 8 if kind == "int8" else 4
    y = f"tensor<{rows}x{columns}xf32>"
    return f"""
func.func @{name}(%x: tensor<{rows}x{depth}xf32>,
                  %w: tensor<{panels}x{groups}x{quads}x16x4xi8>,
                  %s: tensor<{panels}x{groups}x16xf32>) -> {y} {{
  %0 = stablehlo.constant dense<0.0> : {y}
  return %0 : {y}
}}"""


def _program(cases: dict[str, tuple[tuple[int, int, int], str]]) -> ir.Module:
    """Each function returns the product that `stored` writes."""
    module = parse("".join(_text(name, *case) for name, case in cases.items()))
    with module.context, ir.Location.unknown():
        for function, (shape, _) in zip(module.body, cases.values(), strict=True):
            block = function.operation.regions[0].blocks[0]
            *_, end = block.operations
            x, panels, scales = block.arguments
            weight = stored.Quantized(panels, scales, (shape[1], shape[2]))
            with ir.InsertionPoint(end):
                end.operation.operands[0] = stored.product(x, weight, 1)
    assert module.operation.verify()
    return module


def _product(x: np.ndarray, panels: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """In f64, from x made integers as the program makes it."""
    groups = scales.shape[1]
    whole = np.zeros((len(x), groups * 32), np.float32)
    whole[:, : x.shape[1]] = x
    whole = whole.reshape(len(x), groups, 32)
    top = np.abs(whole).max(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        by = np.where(top > 0, np.float32(127) / top, np.float32(0))
    xq = np.rint(whole * by).astype(np.float64) * (top * np.float32(1 / 127))
    return xq.reshape(len(x), -1) @ quantized.restored(panels, scales).T


def _arguments(
    random: np.random.Generator, shape: tuple[int, int, int], kind: str
) -> list[np.ndarray]:
    rows, columns, depth = shape
    x = random.normal(size=(rows, depth)).astype(np.float32)
    x[0, :32] = 0  # a group of nothing
    w = random.normal(size=(columns, depth)).astype(np.float32)
    w[-1] *= 1e-3
    return [x, *quantized.quantized(w, kind)]


CASES = {
    f"{kind}_{i}": (shape, kind)
    for kind in stored.INTEGERS
    for i, shape in enumerate(SHAPES)
}


OWN = [s for s in HERE if objects.best("grouped", s) == s]


@pytest.mark.parametrize(
    "instructions",
    # Slow: the kernel for most of what this processor has shows how it is called.
    [*(pytest.param(s, marks=pytest.mark.slow) for s in ("", *OWN[1:])), *OWN[:1]],
)
def test_same_products(iree: Iree, instructions: str) -> None:
    """Without a set of instructions they are IREE's own code."""
    random = np.random.default_rng(3)
    module = _program(CASES)
    if instructions:
        OwnKernels(set=instructions).run(module)
        names = [op.name for op in operations(module)]
        assert names.count("flow.dispatch") == len(CASES)
    calls = {name: _arguments(random, *case) for name, case in CASES.items()}
    for name, got in zip(calls, iree.run_all(str(module), calls), strict=True):
        assert not isinstance(got, str), got
        (_, columns, _), _ = CASES[name]
        want = _product(*calls[name])[:, :columns]
        # A half that IREE's division rounds to the other side is one step of x.
        np.testing.assert_allclose(got[0], want, atol=2e-3 * np.abs(want).max())
        close = np.isclose(got[0], want, atol=1e-5 * np.abs(want).max(), rtol=0)
        assert close.mean() > 0.9, name


@pytest.mark.slow  # test_own_attention.py has it
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_so(iree: Iree, bad: float) -> None:
    case = {"f": ((2, 16, 64), "int8")}
    x, panels, scales = _arguments(np.random.default_rng(4), *case["f"])
    x[1, 40] = bad
    for instructions in ("", *HERE[:1]):
        module = _program(case)
        if instructions:
            OwnKernels(set=instructions).run(module)
        ((got,),) = iree.run_all(str(module), {"f": [x, panels, scales]})
        assert np.isfinite(got[0]).all()
        assert not np.isfinite(got[1]).any()


def test_a_sum_of_something_else_is_left_alone() -> None:
    """Another zero, another dimension, scales that lie otherwise."""
    for change in (
        ("dense<0.000000e+00>", "dense<1.000000e+00>"),
        ("dims = [2, 0, 3]", "dims = [2, 0, 1]"),
    ):
        module = _program({"f": ((16, 256, 512), "int8")})
        text = str(module)
        assert change[0] in text
        module = parse(text.replace(*change))
        before = [op.name for op in operations(module)]
        OwnKernels(set="x86-64").run(module)
        assert [op.name for op in operations(module)] == before


@pytest.mark.slow  # a program more
def test_rows_of_a_table(iree: Iree) -> None:
    random = np.random.default_rng(5)
    w = random.normal(size=(50, 72)).astype(np.float32)
    tokens = np.array([0, 15, 16, 49, 33], np.int32)
    for kind in stored.INTEGERS:
        panels, scales = quantized.quantized(w, kind)
        p, s = ("x".join(map(str, a.shape)) for a in (panels, scales))
        module = parse(f"""
func.func @main(%t: tensor<5xi32>, %w: tensor<{p}xi8>,
                %s: tensor<{s}xf32>) -> tensor<5x72xf32> {{
  %0 = stablehlo.constant dense<0.0> : tensor<5x72xf32>
  return %0 : tensor<5x72xf32>
}}""")
        with module.context, ir.Location.unknown():
            block = next(iter(module.body)).operation.regions[0].blocks[0]
            *_, end = block.operations
            given, held, by = block.arguments
            with ir.InsertionPoint(end):
                rows = stored.rows(stored.Quantized(held, by, (50, 72)), given)
                end.operation.operands[0] = rows
        assert hlo.shape_of(rows) == (5, 72)
        (got,) = iree.run(str(module), [tokens, panels, scales])
        want = quantized.restored(panels, scales)[tokens, :72]
        np.testing.assert_allclose(got, want, rtol=1e-6)
