"""pcp-spread-scatters gives what a scatter gives, whatever rows meet."""

from collections.abc import Callable

import numpy as np
import pytest
from helpers.sampled import sampled
from helpers.servers.iree_server import Iree

import pcp
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.passes.core.base import verify
from pcp.passes.legalize.devices.spread_scatters import SpreadScatters
from pcp.tools.profile import ptx

_FOLDS: dict[str, Callable[..., None]] = {
    "add": np.add.at,
    "multiply": np.multiply.at,
    "maximum": np.maximum.at,
    "minimum": np.minimum.at,
}


def program(
    indexed: tuple[int, ...], count: int, row: tuple[int, ...], kind: str, element: str
) -> str:
    """A scatter of `count` rows into `[indexed..., row...]`."""
    columns = len(indexed)
    operand, updates = (
        f"tensor<{'x'.join(map(str, (*front, *row)))}x{element}>"
        for front in (indexed, (count,))
    )
    windows = list(range(1, 1 + len(row)))
    front = list(range(columns))
    return f"""
func.func @main(%w: {operand}, %i: tensor<{count}x{columns}xi32>, %u: {updates})
    -> {operand} {{
  %0 = "stablehlo.scatter"(%w, %i, %u) <{{
    scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = {windows},
      inserted_window_dims = {front}, scatter_dims_to_operand_dims = {front},
      index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}}> ({{
    ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
      %1 = stablehlo.{kind} %b, %a : tensor<{element}>
      stablehlo.return %1 : tensor<{element}>
  }}) : ({operand}, tensor<{count}x{columns}xi32>, {updates}) -> {operand}
  return %0 : {operand}
}}"""


def spread(text: str) -> ir.Module:
    module = parse(text)
    SpreadScatters().run(module)
    verify(module, "pcp-spread-scatters")
    return module


@sampled(
    "indexed, count, row, kind, element",
    [
        ((5,), 40, (3,), "add", "f32"),
        ((90,), 40, (3,), "add", "f32"),
        ((6, 7), 50, (), "add", "f32"),
        ((60, 7), 50, (2, 2), "add", "i32"),
        ((5,), 40, (4,), "maximum", "f32"),
        ((90,), 40, (4,), "minimum", "i32"),
        ((90,), 60, (), "multiply", "i32"),
    ],
    2,
)
def test_rows_that_meet(
    indexed: tuple[int, ...],
    count: int,
    row: tuple[int, ...],
    kind: str,
    element: str,
    iree: Iree,
) -> None:
    """Whole numbers, so that any order gives the same bits; numpy is the oracle."""
    draw = np.random.default_rng(count)
    dtype = {"f32": np.float32, "i32": np.int32}[element]
    operand = draw.integers(-9, 9, (*indexed, *row)).astype(dtype)
    updates = draw.integers(-9, 9, (count, *row)).astype(dtype)
    few = [max(1, n // 3) for n in indexed]  # many rows meet
    indices = draw.integers(0, few, (count, len(indexed))).astype(np.int32)
    module = spread(program(indexed, count, row, kind, element))
    assert "unique_indices = false" not in str(module)
    (got,) = iree.run(str(module), [operand, indices, updates])
    want = operand.copy()
    _FOLDS[kind](want, tuple(indices.T), updates)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rows", [3, 30])
def test_what_is_not_finite_stays_in_its_row(rows: int, iree: Iree) -> None:
    updates = np.array([[1.0], [np.inf], [2.0], [np.nan], [4.0]], np.float32)
    indices = np.array([[0], [1], [0], [2], [0]], np.int32)
    text = str(spread(program((rows,), 5, (1,), "add", "f32")))
    (got,) = iree.run(text, [np.zeros((rows, 1), np.float32), indices, updates])
    np.testing.assert_array_equal(got[:3, 0], np.array([7.0, np.inf, np.nan]))


@pytest.mark.parametrize(
    ("indices", "unique"),
    [
        ("stablehlo.iota dim = 0 : tensor<4x1xi32>", True),
        ("stablehlo.iota dim = 1 : tensor<4x1xi32>", False),
        ("stablehlo.constant dense<[[3], [0], [2], [1]]> : tensor<4x1xi32>", True),
        ("stablehlo.constant dense<[[3], [0], [2], [3]]> : tensor<4x1xi32>", False),
        ("stablehlo.slice %n [0:4, 1:2] : (tensor<4x2xi32>) -> tensor<4x1xi32>", True),
        ("stablehlo.slice %n [0:4, 0:1] : (tensor<4x2xi32>) -> tensor<4x1xi32>", False),
        ("stablehlo.clamp %zero, %c, %three : tensor<4x1xi32>", True),
        ("stablehlo.clamp %zero, %c, %two : tensor<4x1xi32>", False),
        ("stablehlo.reshape %v : (tensor<4xi32>) -> tensor<4x1xi32>", True),
        ("stablehlo.reshape %r : (tensor<2x2xi32>) -> tensor<4x1xi32>", False),
    ],
)
def test_rows_that_differ_are_seen(indices: str, unique: bool) -> None:
    if "clamp" in indices:
        indices = indices.replace(": tensor<4x1xi32>", _CLAMPED)
    text = program((4,), 4, (2,), "add", "f32")
    head, body = text.split("  %0 = ", 1)
    known = f"""
  %v64 = stablehlo.iota dim = 0 : tensor<4xi64>
  %v = stablehlo.convert %v64 : (tensor<4xi64>) -> tensor<4xi32>
  %c = stablehlo.broadcast_in_dim %v, dims = [0] : (tensor<4xi32>) -> tensor<4x1xi32>
  %n = stablehlo.concatenate %i, %c, dim = 1
      : (tensor<4x1xi32>, tensor<4x1xi32>) -> tensor<4x2xi32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %three = stablehlo.constant dense<3> : tensor<i32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %w2 = stablehlo.iota dim = 0 : tensor<2xi32>
  %r = stablehlo.broadcast_in_dim %w2, dims = [0] : (tensor<2xi32>) -> tensor<2x2xi32>
  %rows = {indices}
"""
    module = spread(head + known + "  %0 = " + body.replace("%i, %u)", "%rows, %u)"))
    left = "unique_indices = true" in str(module)
    assert left == unique
    assert ("stablehlo.reduce" in str(module)) == (not unique)


_CLAMPED = ": (tensor<i32>, tensor<4x1xi32>, tensor<i32>) -> tensor<4x1xi32>"


def test_an_embedding_s_gradient_has_many_threads_on_a_gpu() -> None:
    kernels = []
    for rows in (16, 400):
        bundle = pcp.compile(
            program((rows,), 128, (64,), "add", "f32"), targets=["sm_80"]
        )
        kernels += ptx.kernels(bundle.module())
    assert [kernel.name for kernel in kernels if kernel.threads == 1] == []
