"""Folding what torch-mlir leaves half computed."""

from pcp.dialect.context import parse
from pcp.frontends.constants import MAX_ELEMENTS, tidy


def _tidied(body: str, result: str) -> str:
    module = parse(f"func.func @main(%x: {result}) -> {result} {{ {body} }}")
    tidy(module)
    assert module.operation.verify()
    return str(module)


def test_a_scalar_is_one_constant() -> None:
    text = _tidied(
        """%c = arith.constant dense<1.0e-05> : tensor<1xf64>
        %0 = stablehlo.convert %c : (tensor<1xf64>) -> tensor<1xf32>
        %1 = stablehlo.reshape %0 : (tensor<1xf32>) -> tensor<f32>
        %2 = stablehlo.add %x, %1 : tensor<f32>
        return %2 : tensor<f32>""",
        "tensor<f32>",
    )
    assert "dense<9.99999974E-6> : tensor<f32>" in text
    assert text.count("stablehlo.") == 2


def test_arange_is_an_iota() -> None:
    text = _tidied(
        """%c = stablehlo.constant dense<4> : tensor<1xi64>
        %0 = stablehlo.dynamic_iota %c, dim = 0 : (tensor<1xi64>) -> tensor<4xi64>
        %1 = stablehlo.convert %0 : (tensor<4xi64>) -> tensor<4xi64>
        return %1 : tensor<4xi64>""",
        "tensor<4xi64>",
    )
    assert "stablehlo.iota dim = 0 : tensor<4xi64>" in text
    assert text.count("stablehlo.") == 1


def test_a_mask_of_bytes_is_one_of_bits() -> None:
    text = _tidied(
        """%c = stablehlo.constant dense<[0, 1, 2]> : tensor<3xui8>
        %0 = stablehlo.convert %c : (tensor<3xui8>) -> tensor<3xi1>
        %1 = stablehlo.not %0 : tensor<3xi1>
        return %1 : tensor<3xi1>""",
        "tensor<3xi1>",
    )
    assert "dense<[true, false, false]> : tensor<3xi1>" in text


def test_large_constants_and_arguments_stay() -> None:
    size = MAX_ELEMENTS + 1
    text = _tidied(
        f"""%c = stablehlo.constant dense<1.0> : tensor<{size}xf32>
        %0 = stablehlo.negate %c : tensor<{size}xf32>
        %1 = stablehlo.negate %x : tensor<{size}xf32>
        %2 = stablehlo.add %0, %1 : tensor<{size}xf32>
        return %2 : tensor<{size}xf32>""",
        f"tensor<{size}xf32>",
    )
    assert text.count("stablehlo.negate") == 2
