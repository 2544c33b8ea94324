"""Tensors that start from one 64-bit value have memory of their own, against numpy."""

import numpy as np
import pytest
from helpers.oracles.legalized import legalized
from helpers.sampled import sampled
from helpers.servers.iree_server import Iree

PADS = """
func.func @main(%x: tensor<2x1x6xT>, %y: tensor<2x1x6xT>) -> (tensor<2x4x6xT>, tensor<2x4x6xT>) {
  %c = stablehlo.constant dense<FILL> : tensor<T>
  %0 = stablehlo.pad %x, %c, low = [0, 1, 0], high = [0, 2, 0], interior = [0, 0, 0] : (tensor<2x1x6xT>, tensor<T>) -> tensor<2x4x6xT>
  %1 = stablehlo.pad %y, %c, low = [0, 2, 0], high = [0, 1, 0], interior = [0, 0, 0] : (tensor<2x1x6xT>, tensor<T>) -> tensor<2x4x6xT>
  return %0, %1 : tensor<2x4x6xT>, tensor<2x4x6xT>
}
"""  # noqa: E501

UPDATES = """
func.func @main(%x: tensor<2xT>, %y: tensor<2xT>) -> (tensor<5xT>, tensor<5xT>) {
  %c = stablehlo.constant dense<FILL> : tensor<5xT>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %two = stablehlo.constant dense<2> : tensor<i32>
  %0 = stablehlo.dynamic_update_slice %c, %x, %one : (tensor<5xT>, tensor<2xT>, tensor<i32>) -> tensor<5xT>
  %1 = stablehlo.dynamic_update_slice %c, %y, %two : (tensor<5xT>, tensor<2xT>, tensor<i32>) -> tensor<5xT>
  %2 = stablehlo.add %0, %1 : tensor<5xT>
  return %2, %1 : tensor<5xT>, tensor<5xT>
}
"""  # noqa: E501

WINDOWS = """
func.func @main(%x: tensor<4x6xf64>, %y: tensor<4x6xf64>) -> (tensor<4x6xf64>, tensor<4x6xf64>) {
  %c = stablehlo.constant dense<0xFFF0000000000000> : tensor<f64>
  %0 = "stablehlo.reduce_window"(%x, %c) <{padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 3>}> ({
  ^bb0(%a: tensor<f64>, %b: tensor<f64>):
    %m = stablehlo.maximum %a, %b : tensor<f64>
    stablehlo.return %m : tensor<f64>
  }) : (tensor<4x6xf64>, tensor<f64>) -> tensor<4x6xf64>
  %1 = "stablehlo.reduce_window"(%y, %c) <{padding = dense<[[0, 0], [2, 0]]> : tensor<2x2xi64>, window_dimensions = array<i64: 1, 3>}> ({
  ^bb0(%a: tensor<f64>, %b: tensor<f64>):
    %m = stablehlo.maximum %a, %b : tensor<f64>
    stablehlo.return %m : tensor<f64>
  }) : (tensor<4x6xf64>, tensor<f64>) -> tensor<4x6xf64>
  return %0, %1 : tensor<4x6xf64>, tensor<4x6xf64>
}
"""  # noqa: E501

#: MLIR's type and fill, and numpy's.
FILLS = [
    ("i64", "7", np.int64(7)),
    ("ui64", "7", np.uint64(7)),
    ("f64", "-1.5", np.float64(-1.5)),
    ("complex<f32>", "(1.0, 2.0)", np.complex64(1 + 2j)),
    ("complex<f64>", "(1.0, 2.0)", np.complex128(1 + 2j)),
]
IDS = [name for name, _, _ in FILLS]


def _numbers(shape: tuple[int, ...], like: np.generic, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).integers(10, 99, shape)
    return drawn.astype(like.dtype)


def _check(
    iree: Iree, text: str, given: list[np.ndarray], wanted: list[np.ndarray]
) -> None:
    for ours, theirs in zip(iree.run(text, given), wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _pads(name: str, fill: str, like: np.generic) -> tuple[str, list, list]:
    x, y = (_numbers((2, 1, 6), like, seed) for seed in (0, 1))
    edges = [((0, 0), (1, 2), (0, 0)), ((0, 0), (2, 1), (0, 0))]
    wanted = [
        np.pad(v, edge, constant_values=like)
        for v, edge in zip((x, y), edges, strict=True)
    ]
    return PADS.replace("T>", f"{name}>").replace("FILL", fill), [x, y], wanted


@sampled("name, fill, like", FILLS, 2, ids=IDS)
def test_two_pads(iree: Iree, name: str, fill: str, like: np.generic) -> None:
    text, given, wanted = _pads(name, fill, like)
    _check(iree, legalized(text), given, wanted)


@sampled("name, fill, like", FILLS, 2, ids=IDS)
def test_two_updates(iree: Iree, name: str, fill: str, like: np.generic) -> None:
    x, y = (_numbers((2,), like, seed) for seed in (0, 1))
    first, second = (np.full(5, like, like.dtype) for _ in (x, y))
    first[1:3], second[2:4] = x, y
    text = UPDATES.replace("T>", f"{name}>").replace("FILL", fill)
    _check(iree, legalized(text), [x, y], [np.add(first, second), second])


def test_two_windows(iree: Iree) -> None:
    x, y = (_numbers((4, 6), np.float64(0), seed) for seed in (0, 1))
    wanted = []
    for v, edge in ((x, (1, 1)), (y, (2, 0))):
        padded = np.pad(v, ((0, 0), edge), constant_values=-np.inf)
        rows = np.lib.stride_tricks.sliding_window_view(padded, 3, 1)
        wanted.append(rows.max(-1))
    _check(iree, legalized(WINDOWS), [x, y], wanted)


@pytest.mark.slow
def test_iree_alone_mixes_them(iree: Iree) -> None:
    """Or a newer IREE has caught up."""
    text, given, wanted = _pads(*FILLS[0])
    with pytest.raises(AssertionError):
        _check(iree, text, given, wanted)
