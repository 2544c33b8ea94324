"""Guarded values are the same bits, for every element type, NaN included."""

import numpy as np
import pytest
from helpers.servers.interpreter import Interpreter

from pcp.autodiff.remat.guards import waiting
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse

WAITS = ["f32", "f64", "f16", "bf16", "i1", "i8", "ui16", "i64", "complex<f32>"]


def guarded(wait: str, value: str) -> str:
    """`@main(wait, value)` returns the value, once the wait is computed."""
    module = parse(
        f"func.func @main(%w: {wait}, %v: {value}) -> {value} {{ return %v : {value} }}"
    )
    block = module.body.operations[0].regions[0].blocks[0]
    end = block.operations[0].operation
    with module.context, ir.InsertionPoint(end), end.location:
        (found,) = waiting([block.arguments[1]], [block.arguments[0]] * 2)
    end.operands[0] = found
    assert module.operation.verify()
    return str(module)


@pytest.mark.parametrize("element", WAITS)
def test_waits_of_any_type(element: str) -> None:
    text = guarded(f"tensor<2x3x{element}>", "tensor<4xf32>")
    assert "stablehlo.select" in text
    assert f"tensor<2x3x{element}>) -> tensor<1x1x{element}>" in text


@pytest.mark.parametrize("wait", [np.nan, np.inf, -1.0, 0.0, -0.0])
@pytest.mark.parametrize("shape", ["", "3x", "2x2x"])
def test_values_are_unchanged(
    wait: float, shape: str, interpreter: Interpreter
) -> None:
    sizes = tuple(int(n) for n in shape.split("x") if n)
    value = np.full(sizes, np.nan, np.float32)
    value.reshape(-1)[-1] = -0.0
    waits = np.full((2, 2), wait, np.float32)
    text = guarded("tensor<2x2xf32>", f"tensor<{shape}f32>")
    (found,) = interpreter.run(text, [waits, value])
    assert found.tobytes() == value.tobytes()
