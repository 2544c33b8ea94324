"""Floats to integers through IREE: saturated as XLA does it, NaN to 0."""

import jax
import ml_dtypes
import numpy as np
import pytest
from helpers.oracles.legalized import legalized
from helpers.sampled import sampled
from helpers.servers.iree_server import Iree
from jax import lax

FLOATS = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
}
INTEGERS = [f"{kind}{width}" for kind in ("int", "uint") for width in (8, 16, 32, 64)]


def _points(dtype: type) -> np.ndarray:
    """Around every power of 2 up to the largest, both signs, and what is no number."""
    powers = 2.0 ** np.arange(-2, 66)
    ends = [0.0, 0.9, 127.9, 255.5, 1e30, np.inf]
    points = np.concatenate([powers, powers - 1, ends])
    with np.errstate(over="ignore"):
        near = points.astype(dtype)
        below, above = (np.nextafter(near, dtype(t)) for t in (0, np.inf))
    found = np.concatenate([near, below, above])
    return np.concatenate([found, -found, np.array([np.nan], dtype)])


@sampled("element", FLOATS, 2)
def test_all_conversions_are_those_of_jax(each_cpu: Iree, element: str) -> None:
    x = _points(FLOATS[element])

    def conversions(x):
        return tuple(lax.convert_element_type(x, dtype) for dtype in INTEGERS)

    with jax.enable_x64(True):
        jitted = jax.jit(conversions)
        text, wanted = jitted.lower(x).as_text(), jitted(x)
    answers = each_cpu.run(legalized(text), [x])
    for name, got, want in zip(INTEGERS, answers, wanted, strict=True):
        np.testing.assert_array_equal(got.view(name), want, err_msg=name)


SAFE = {
    "an integer": """
  %0 = stablehlo.convert %n : (tensor<4xi16>) -> tensor<4xf32>
  %1 = stablehlo.floor %0 : tensor<4xf32>""",
    "a count": """
  %1 = stablehlo.iota dim = 0 : tensor<4xf32>""",
    "a constant": """
  %1 = stablehlo.constant dense<[1.0, 2.0, 100.0, -1.0e+09]> : tensor<4xf32>""",
}
UNSAFE = {
    # 2³¹ - 1 is 2³¹ as f32.
    "a wide integer": """
  %1 = stablehlo.convert %w : (tensor<4xi32>) -> tensor<4xf32>""",
    "a constant": """
  %1 = stablehlo.constant dense<[1.0, 2.0, 3.0e+09, -1.0]> : tensor<4xf32>""",
    "clamped, maybe NaN": """
  %a = stablehlo.constant dense<0.0> : tensor<f32>
  %b = stablehlo.constant dense<9.0> : tensor<f32>
  %1 = stablehlo.clamp %a, %x, %b : (tensor<f32>, tensor<4xf32>, tensor<f32>)
    -> tensor<4xf32>""",
}


@pytest.mark.parametrize(
    ("body", "is_guarded"),
    [*((b, False) for b in SAFE.values()), *((b, True) for b in UNSAFE.values())],
    ids=[*SAFE, *(f"unsafe: {name}" for name in UNSAFE)],
)
def test_only_what_may_not_fit_is_guarded(body: str, is_guarded: bool) -> None:
    text = legalized(f"""
func.func @main(%x: tensor<4xf32>, %n: tensor<4xi16>, %w: tensor<4xi32>)
    -> tensor<4xi32> {{{body}
  %2 = stablehlo.convert %1 : (tensor<4xf32>) -> tensor<4xi32>
  return %2 : tensor<4xi32>
}}""")
    assert ("stablehlo.compare" in text) == is_guarded
