"""The checks themselves: they pass what is right and catch what is slightly not."""

import numpy as np
import pytest
from helpers.cases.elementwise import CASES
from helpers.oracles.jax_gradients import check_vjp, transformed
from helpers.servers.interpreter import Interpreter

from pcp.autodiff.core import registry
from pcp.autodiff.core.kinds import Elementwise
from pcp.autodiff.core.values import scale
from pcp.autodiff.passes.check import dot_test
from pcp.dialect import hlo

WRONG_BY = 1e-3

TEXT = """
func.func @main(%x: tensor<3x4xf64>, %w: tensor<4x2xf64>) -> tensor<3x2xf64> {
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<3x4xf64>, tensor<4x2xf64>) -> tensor<3x2xf64>
  %z = stablehlo.sine %y : tensor<3x2xf64>
  return %z : tensor<3x2xf64>
}"""


@pytest.fixture
def slightly_wrong_sine():
    registry.register(
        "stablehlo.sine",
        Elementwise(
            lambda g, x, y: scale(hlo.multiply(g, hlo.cosine(x)), 1 + WRONG_BY)
        ),
    )
    yield
    registry.unregister("stablehlo.sine")


def disagreement(interpreter: Interpreter) -> float:
    derived = transformed(TEXT, "pcp-vjp")
    rng = np.random.default_rng(0)
    point = [rng.standard_normal((3, 4)), rng.standard_normal((4, 2))]
    return dot_test(
        lambda *x: interpreter.run(TEXT, x),
        lambda *x: interpreter.run(derived, x)[1:],
        point,
    )


def test_dot_test_passes_a_right_rule(interpreter: Interpreter) -> None:
    assert disagreement(interpreter) < 1e-7


def test_dot_test_catches_a_wrong_rule(
    interpreter: Interpreter, slightly_wrong_sine: None
) -> None:
    assert WRONG_BY / 10 < disagreement(interpreter) < WRONG_BY * 10


def test_comparison_with_jax_catches_a_wrong_rule(
    interpreter: Interpreter, slightly_wrong_sine: None
) -> None:
    case = next(c for c in CASES if c.name == "sine")
    with pytest.raises(AssertionError, match="gradient 0"):
        check_vjp(case, interpreter)
