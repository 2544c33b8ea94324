"""pcp-import: what other tools write, made regular, of equal value."""

import numpy as np
import pytest
from helpers.servers.interpreter import Interpreter

from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.passes.core.rewriting import operations
from pcp.passes.ingest.import_ import Import


def imported(text: str) -> str:
    """The program after the pass; a second run changes nothing."""
    module = parse(text)
    Import().run(module)
    assert module.operation.verify()
    once = str(module)
    Import().run(module)
    assert str(module) == once
    return once


def names(text: str) -> set[str]:
    """The ops inside of the functions."""
    return {op.name for op in operations(parse(text))}


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers in float32."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def main(arguments: str, result: str, body: str) -> str:
    """A function that returns `%0`."""
    return f"""
func.func @main({arguments}) -> {result} {{
  {body}
  return %0 : {result}
}}"""


X, Y = floats(2, 3), floats(3, 4, seed=1)
I64 = "tensor<2xi64>"

STATIC: dict[str, tuple[str, str, list[np.ndarray], np.ndarray]] = {
    "dynamic_iota": (
        "stablehlo.iota",
        main(
            "",
            "tensor<4xi64>",
            "%c = arith.constant dense<4> : tensor<1xi64>\n"
            "%0 = stablehlo.dynamic_iota %c, dim = 0 : "
            "(tensor<1xi64>) -> tensor<4xi64>",
        ),
        [],
        np.arange(4),
    ),
    "dynamic_reshape": (
        "stablehlo.reshape",
        main(
            "%x: tensor<2x3xf32>",
            "tensor<3x2xf32>",
            f"%c = stablehlo.constant dense<[3, 2]> : {I64}\n"
            "%0 = stablehlo.dynamic_reshape %x, %c : "
            f"(tensor<2x3xf32>, {I64}) -> tensor<3x2xf32>",
        ),
        [X],
        X.reshape(3, 2),
    ),
    "dynamic_broadcast_in_dim": (
        "stablehlo.broadcast_in_dim",
        main(
            "%x: tensor<3xf32>",
            "tensor<2x3xf32>",
            f"%c = stablehlo.constant dense<[2, 3]> : {I64}\n"
            "%0 = stablehlo.dynamic_broadcast_in_dim %x, %c, dims = [1] : "
            f"(tensor<3xf32>, {I64}) -> tensor<2x3xf32>",
        ),
        [X[0]],
        np.broadcast_to(X[0], (2, 3)),
    ),
    "dynamic_pad": (
        "stablehlo.pad",
        main(
            "%x: tensor<2x3xf32>",
            "tensor<4x4xf32>",
            "%v = stablehlo.constant dense<7.0> : tensor<f32>\n"
            f"%l = stablehlo.constant dense<[1, 0]> : {I64}\n"
            f"%h = stablehlo.constant dense<1> : {I64}\n"
            f"%i = stablehlo.constant dense<0> : {I64}\n"
            "%0 = stablehlo.dynamic_pad %x, %v, %l, %h, %i : (tensor<2x3xf32>, "
            f"tensor<f32>, {I64}, {I64}, {I64}) -> tensor<4x4xf32>",
        ),
        [X],
        np.pad(X, [(1, 1), (0, 1)], constant_values=7),
    ),
    "real_dynamic_slice": (
        "stablehlo.slice",
        main(
            "%x: tensor<2x3xf32>",
            "tensor<1x2xf32>",
            f"%s = stablehlo.constant dense<[1, 0]> : {I64}\n"
            f"%l = stablehlo.constant dense<[2, 3]> : {I64}\n"
            f"%t = stablehlo.constant dense<[1, 2]> : {I64}\n"
            "%0 = stablehlo.real_dynamic_slice %x, %s, %l, %t : "
            f"(tensor<2x3xf32>, {I64}, {I64}, {I64}) -> tensor<1x2xf32>",
        ),
        [X],
        X[1:2, ::2],
    ),
    "dynamic_gather": (
        "stablehlo.gather",
        main(
            "%x: tensor<3x4xf32>, %i: tensor<2xi64>",
            "tensor<2x4xf32>",
            f"%s = stablehlo.constant dense<[1, 4]> : {I64}\n"
            '%0 = "stablehlo.dynamic_gather"(%x, %i, %s) <{dimension_numbers = '
            "#stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], "
            "start_index_map = [0], index_vector_dim = 1>}> : "
            f"(tensor<3x4xf32>, {I64}, {I64}) -> tensor<2x4xf32>",
        ),
        [Y, np.array([2, 0])],
        Y[[2, 0]],
    ),
    "get_dimension_size": (
        "stablehlo.constant",
        main(
            "%x: tensor<2x3xf32>",
            "tensor<i32>",
            "%0 = stablehlo.get_dimension_size %x, dim = 1 : "
            "(tensor<2x3xf32>) -> tensor<i32>",
        ),
        [X],
        np.array(3, np.int32),
    ),
    "dot": (
        "stablehlo.dot_general",
        main(
            "%x: tensor<2x3xf32>, %y: tensor<3x4xf32>",
            "tensor<2x4xf32>",
            "%0 = stablehlo.dot %x, %y : "
            "(tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>",
        ),
        [X, Y],
        X @ Y,
    ),
    "broadcast": (
        "stablehlo.broadcast_in_dim",
        main(
            "%x: tensor<2x3xf32>",
            "tensor<5x2x3xf32>",
            "%0 = stablehlo.broadcast %x, sizes = [5] : "
            "(tensor<2x3xf32>) -> tensor<5x2x3xf32>",
        ),
        [X],
        np.broadcast_to(X, (5, 2, 3)),
    ),
    "unary_einsum": (
        "stablehlo.reduce",
        main(
            "%x: tensor<2x3xf32>",
            "tensor<3xf32>",
            '%0 = "stablehlo.unary_einsum"(%x) <{einsum_config = "ab->b"}> : '
            "(tensor<2x3xf32>) -> tensor<3xf32>",
        ),
        [X],
        np.einsum("ab->b", X),
    ),
}


@pytest.mark.parametrize("case", STATIC)
def test_becomes_a_static_op_of_the_specification(
    interpreter: Interpreter, case: str
) -> None:
    op, text, arguments, want = STATIC[case]
    done = imported(text)
    assert op in names(done)
    assert f"stablehlo.{case}" not in names(done)
    (got,) = interpreter.run(done, arguments)
    np.testing.assert_allclose(got, want, rtol=1e-6)


EINSUMS = ("ab,bc->ac", "ab,cb->ca", "abc,adc->bad", "ab,cd->dbca", "abc,bd->cb")


@pytest.mark.parametrize("config", EINSUMS)
def test_einsum(interpreter: Interpreter, config: str) -> None:
    sizes = dict(zip("abcd", (2, 3, 4, 5), strict=True))
    left, right, out = config.replace("->", ",").split(",")

    def tensor(labels: str) -> str:
        return "x".join([*(str(sizes[c]) for c in labels), "f32"])

    x, y = (floats(*(sizes[c] for c in t), seed=i) for i, t in enumerate((left, right)))
    a, b, c = (f"tensor<{tensor(t)}>" for t in (left, right, out))
    text = main(
        f"%x: {a}, %y: {b}",
        c,
        f'%0 = "stablehlo.einsum"(%x, %y) <{{einsum_config = "{config}"}}> : '
        f"({a}, {b}) -> {c}",
    )
    (got,) = interpreter.run(imported(text), [x, y])
    np.testing.assert_allclose(got, np.einsum(config, x, y), rtol=1e-5, atol=1e-5)


SELECTS = ((0, 0, (2,)), (1, 0, (2, 2)), (2, 1, (2, 3)))


@pytest.mark.parametrize(("dim", "batch", "shape"), SELECTS)
def test_torch_index_select(
    interpreter: Interpreter, dim: int, batch: int, shape: tuple[int, ...]
) -> None:
    x = floats(2, 3, 4)
    index = np.random.default_rng(1).integers(0, x.shape[dim], shape)
    if batch:
        want = np.stack([np.take(a, i, dim - 1) for a, i in zip(x, index, strict=True)])
    else:
        want = np.take(x, index, dim)
    types = (x.shape, index.shape, want.shape)
    a, b, c = (
        f"tensor<{'x'.join(map(str, s))}x{e}>"
        for s, e in zip(types, ("f32", "i64", "f32"), strict=True)
    )
    text = main(
        f"%x: {a}, %i: {b}",
        c,
        f'%0 = "stablehlo.torch_index_select"(%x, %i) <{{dim = {dim} : i64, '
        f"batch_dims = {batch} : i64}}> : ({a}, {b}) -> {c}",
    )
    (got,) = interpreter.run(imported(text), [x, index])
    np.testing.assert_array_equal(got, want)


def test_shapes_in_between_are_refined(interpreter: Interpreter) -> None:
    text = main(
        "%x: tensor<2x3xf32>",
        "tensor<3x2xf32>",
        f"%c = stablehlo.constant dense<[3, 2]> : {I64}\n"
        "%d = stablehlo.dynamic_reshape %x, %c : "
        f"(tensor<2x3xf32>, {I64}) -> tensor<?x2xf32>\n"
        "%n = stablehlo.negate %d : tensor<?x2xf32>\n"
        "%0 = stablehlo.dynamic_reshape %n, %c : "
        f"(tensor<?x2xf32>, {I64}) -> tensor<3x2xf32>",
    )
    (got,) = interpreter.run(imported(text), [X])
    np.testing.assert_array_equal(got, -X.reshape(3, 2))


def test_a_computed_shape_is_folded() -> None:
    """As torch-mlir writes an arange: ceil(32 / 1) elements."""
    text = main(
        "",
        "tensor<4xf32>",
        "%z = stablehlo.constant dense<0.0> : tensor<f32>\n"
        "%o = stablehlo.constant dense<1.0> : tensor<f32>\n"
        "%a = stablehlo.constant dense<7.0> : tensor<f64>\n"
        "%b = stablehlo.constant dense<2.0> : tensor<f64>\n"
        "%q = stablehlo.divide %a, %b : tensor<f64>\n"
        "%r = stablehlo.ceil %q : tensor<f64>\n"
        "%i = stablehlo.convert %r : (tensor<f64>) -> tensor<i64>\n"
        "%h = stablehlo.reshape %i : (tensor<i64>) -> tensor<1xi64>\n"
        "%l = stablehlo.constant dense<0> : tensor<1xi64>\n"
        "%s = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> "
        "tensor<0xf32>\n"
        "%0 = stablehlo.dynamic_pad %s, %o, %l, %h, %l : (tensor<0xf32>, tensor<f32>, "
        "tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<4xf32>",
    )
    assert "high = [4]" in imported(text)


REFUSED: dict[str, tuple[str, str]] = {
    "argument": (
        main("%x: tensor<?xf32>", "tensor<?xf32>", "%0 = stablehlo.abs %x : T").replace(
            ": T", ": tensor<?xf32>"
        ),
        r"argument 0 is tensor<\?xf32>; export the model with static shapes",
    ),
    "data": (
        main(
            "%x: tensor<2x3xf32>, %n: tensor<2xi64>",
            "tensor<4x4xf32>",
            "%v = stablehlo.constant dense<7.0> : tensor<f32>\n"
            "%0 = stablehlo.dynamic_pad %x, %v, %n, %n, %n : (tensor<2x3xf32>, "
            f"tensor<f32>, {I64}, {I64}, {I64}) -> tensor<4x4xf32>",
        ),
        r"4:6: stablehlo.dynamic_pad: operand 2 is not constant",
    ),
    "dialect": (
        main(
            "%x: tensor<2xf32>",
            "tensor<2xf32>",
            "%s = shape.shape_of %x : tensor<2xf32> -> tensor<1xindex>\n"
            "%0 = stablehlo.abs %x : tensor<2xf32>",
        ),
        r"3:8: shape.shape_of: not a StableHLO op; .* or to ops of arith, linalg, math",
    ),
    "memory": (
        main(
            "%x: tensor<2xf32>, %m: memref<2xf32>",
            "tensor<2xf32>",
            "%0 = stablehlo.abs %x : tensor<2xf32>",
        ),
        r"2:1: func.func: argument 1 is memref<2xf32>; a program's values are tensors",
    ),
    "einsum": (
        main(
            "%x: tensor<2x2xf32>",
            "tensor<2xf32>",
            '%0 = "stablehlo.unary_einsum"(%x) <{einsum_config = "aa->a"}> : '
            "(tensor<2x2xf32>) -> tensor<2xf32>",
        ),
        r"3:8: stablehlo.unary_einsum: 'aa->a' has an ellipsis or a repeated label",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_place(case: str) -> None:
    text, message = REFUSED[case]
    with pytest.raises(PassError, match=message):
        imported(text)
