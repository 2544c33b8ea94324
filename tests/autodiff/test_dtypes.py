"""Every element type of every op against jax.vjp."""

import re
from contextlib import nullcontext

import jax
import numpy as np
import pytest
from helpers.cases.dtypes import CASES, Typed
from helpers.oracles.jax_gradients import check_vjp, transformed
from helpers.servers.interpreter import Interpreter

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context

#: The interpreter ends its process on these; IREE runs them in the tests of the
#: chapter on linear algebra.
NOT_INTERPRETED = {"fft_complex64", "ifft_complex64"}

#: By default every nineteenth; all of them by `make test-full`.
SAMPLED = [
    pytest.param(typed, marks=() if i % 19 == 0 else pytest.mark.slow)
    for i, typed in enumerate(c for c in CASES if c.name not in NOT_INTERPRETED)
]


@pytest.mark.parametrize("typed", SAMPLED, ids=str)
def test_vjp(typed: Typed, interpreter: Interpreter) -> None:
    with jax.enable_x64(True) if typed.is_double else nullcontext():
        check_vjp(typed.case(), interpreter)


#: Of eight bits, with zero, sign and NaN (`hlo.NO_COTANGENT` has the others).
EIGHT_BITS = (
    "f8E3M4",
    "f8E4M3",
    "f8E4M3FN",
    "f8E4M3FNUZ",
    "f8E4M3B11FNUZ",
    "f8E5M2",
    "f8E5M2FNUZ",
)


def _square(element: str) -> str:
    """x² in eight bits, of f32 and to f32."""
    narrow = f"tensor<4x{element}>"
    return f"""
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %0 = stablehlo.convert %x : (tensor<4xf32>) -> {narrow}
      %1 = stablehlo.multiply %0, %0 : {narrow}
      %2 = stablehlo.convert %1 : ({narrow}) -> tensor<4xf32>
      return %2 : tensor<4xf32>
    }}"""


@pytest.mark.parametrize("element", EIGHT_BITS)
def test_eight_bits(element: str, interpreter: Interpreter) -> None:
    """Numbers that each of the types has, so that 2xg is exact."""
    x = np.array([0.5, 1.0, -2.0, 0.25], np.float32)
    g = np.array([1.0, -1.0, 0.5, 1.5], np.float32)
    derived = transformed(_square(element), "pcp-vjp")
    result, gradient = interpreter.run(derived, [x, g])
    np.testing.assert_array_equal(result, x * x)
    np.testing.assert_array_equal(gradient, 2 * x * g)


def test_every_float_is_sorted() -> None:
    """Each float of StableHLO is tested here or refused; none is forgotten."""
    wide = {"bf16", "f16", "f32", "f64", "tf32"}
    with make_context():
        known = {
            str(type_.get())
            for name, type_ in vars(ir).items()
            if re.fullmatch(r"(Float\w+|BF16|F16|F32|F64)Type", name)
            and type_ is not ir.FloatType
        }
        refused = {str(type_.get()) for type_ in hlo.NO_COTANGENT}
    assert not refused & {*EIGHT_BITS, *wide}
    assert known - refused - wide == {*EIGHT_BITS}
