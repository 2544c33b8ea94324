"""pcp-simplify: the interpreter gives the same bits before and after."""

import sys
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from helpers.random_programs.simplifiable import RandomProgram
from helpers.servers.interpreter import Interpreter

from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations
from pcp.passes.simplify.simplify import PATTERNS, Simplify

LOOSE = Simplify(signed_zeros=False, reassociate=True, narrow_f64=True)


def simplified(text: str, options: Simplify = Simplify()) -> str:  # noqa: B008
    """The program after the pass, verified; a second run changes nothing."""
    module = parse(text)
    options.run(module)
    assert module.operation.verify()
    once = str(module)
    options.run(module)
    assert str(module) == once
    return once


def names(text: str) -> list[str]:
    """The ops of all functions."""
    listed = [op.name.removeprefix("stablehlo.") for op in operations(parse(text))]
    return [n for n in listed if n not in ("func.func", "func.return", "return")]


def bits(x: np.ndarray) -> np.ndarray:
    """As integers, with one pattern for every NaN."""
    return np.where(np.isnan(x), np.float32(np.nan), x).view(np.int32)


def _has_sums(text: str) -> bool:
    return "dot_general" in text or "applies stablehlo.add" in text


ONE_OVER = """
func.func @main(%x: tensor<1xf32>, %y: tensor<2x1xf32>) -> tensor<2x1xf32> {
  %c = stablehlo.constant dense<1.0> : tensor<f32>
  %one = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<1xf32>
  %s = stablehlo.sqrt %x : tensor<1xf32>
  %q = stablehlo.divide %one, %s : tensor<1xf32>
  %0 = stablehlo.broadcast_in_dim %q, dims = [1] : (tensor<1xf32>) -> tensor<2x1xf32>
  %1 = stablehlo.multiply %0, %y : tensor<2x1xf32>
  return %1 : tensor<2x1xf32>
}
"""


def test_a_reshaped_constant_is_not_what_is_mapped(interpreter: Interpreter) -> None:
    """The quotient was taken for 1/1, since its constant came through a reshape."""
    given = [np.full(1, 16, np.float32), np.full((2, 1), 3, np.float32)]
    (ours,) = interpreter.run(simplified(ONE_OVER), given)
    np.testing.assert_array_equal(ours, np.full((2, 1), 0.75, np.float32))


@pytest.mark.parametrize("seed", range(60))
def test_same_bits(interpreter: Interpreter, seed: int) -> None:
    """Of random programs. -0.0 may differ where a sum over dims of 1 is left out."""
    program = RandomProgram(seed, length=14)
    arguments = program.arguments()
    want = interpreter.run(program.text, arguments)
    got = interpreter.run(simplified(program.text), arguments)
    for g, w in zip(got, want, strict=True):
        if _has_sums(program.text):
            np.testing.assert_array_equal(g, w)
        else:
            np.testing.assert_array_equal(bits(g), bits(w))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1600))
def test_same_bits_at_length(interpreter: Interpreter, seed: int) -> None:
    test_same_bits(interpreter, seed)


@pytest.mark.parametrize("seed", range(100, 125))
def test_all_options_keep_finite_values(interpreter: Interpreter, seed: int) -> None:
    """To rounding, on programs that give finite values from finite ones."""
    program = RandomProgram(seed, length=10)
    arguments = [
        np.abs(np.nan_to_num(a, nan=1.5, posinf=2.5, neginf=-2.5)) + 0.5
        for a in program.arguments()
    ]
    want = interpreter.run(program.text, arguments)
    got = interpreter.run(simplified(program.text, LOOSE), arguments)
    for g, w in zip(got, want, strict=True):
        clean = np.isfinite(w)
        scale = np.abs(w[clean]).max(initial=1)
        np.testing.assert_allclose(g[clean], w[clean], rtol=1e-4, atol=1e-4 * scale)


X = "%x: tensor<2x3xf32>"
T = "tensor<2x3xf32>"


def main(body: str, result: str = T, arguments: str = X) -> str:
    """A function; `%0` is what it returns."""
    return (
        f"func.func @main({arguments}) -> {result} {{\n{body}\nreturn %0 : {result}\n}}"
    )


def _constant(value: str, type_: str = T) -> str:
    return f"%c = stablehlo.constant dense<{value}> : {type_}\n"


SHORTER: dict[str, tuple[str, list[str]]] = {
    "x + -0.0": (
        main(_constant("-0.0") + f"%0 = stablehlo.add %x, %c : {T}"),
        [],
    ),
    "x * 1": (main(_constant("1.0") + f"%0 = stablehlo.multiply %x, %c : {T}"), []),
    "x / 4": (
        main(_constant("4.0") + f"%0 = stablehlo.divide %x, %c : {T}"),
        ["constant", "multiply"],
    ),
    "x ** 2": (
        main(_constant("2.0") + f"%0 = stablehlo.power %x, %c : {T}"),
        ["multiply"],
    ),
    "sqrt of a square": (
        main(
            f"%s = stablehlo.multiply %x, %x : {T}\n"
            + _constant("0.5")
            + f"%0 = stablehlo.power %s, %c : {T}"
        ),
        ["multiply", "sqrt"],
    ),
    "x - -y": (
        main(f"%n = stablehlo.negate %x : {T}\n%0 = stablehlo.subtract %x, %n : {T}"),
        ["add"],
    ),
    "f32 through f64": (
        main(
            f"%w = stablehlo.convert %x : ({T}) -> tensor<2x3xf64>\n"
            f"%0 = stablehlo.convert %w : (tensor<2x3xf64>) -> {T}"
        ),
        [],
    ),
    "f32 through f16": (
        main(
            f"%w = stablehlo.convert %x : ({T}) -> tensor<2x3xf16>\n"
            f"%0 = stablehlo.convert %w : (tensor<2x3xf16>) -> {T}"
        ),
        ["convert", "convert"],
    ),
    "transposed operand": (
        main(
            f"%t = stablehlo.transpose %x, dims = [1, 0] : ({T}) -> tensor<3x2xf32>\n"
            "%0 = stablehlo.dot_general %x, %t, contracting_dims = [1] x [0] : "
            f"({T}, tensor<3x2xf32>) -> tensor<2x2xf32>",
            "tensor<2x2xf32>",
        ),
        ["dot_general"],
    ),
    "transposed product": (
        main(
            "%d = stablehlo.dot_general %x, %y, contracting_dims = [1] x [1] : "
            f"({T}, tensor<4x3xf32>) -> tensor<2x4xf32>\n"
            "%0 = stablehlo.transpose %d, dims = [1, 0] : (tensor<2x4xf32>) -> "
            "tensor<4x2xf32>",
            "tensor<4x2xf32>",
            X + ", %y: tensor<4x3xf32>",
        ),
        ["dot_general"],
    ),
    "max of repeats": (
        main(
            "%b = stablehlo.broadcast_in_dim %x, dims = [0, 2] : "
            f"({T}) -> tensor<2x5x3xf32>\n"
            + _constant("0xFF800000", "tensor<f32>")
            + "%0 = stablehlo.reduce(%b init: %c) applies stablehlo.maximum across "
            f"dimensions = [1] : (tensor<2x5x3xf32>, tensor<f32>) -> {T}"
        ),
        [],
    ),
    "slice of a part": (
        main(
            f"%j = stablehlo.concatenate %x, %x, dim = 0 : ({T}, {T}) -> "
            "tensor<4x3xf32>\n"
            "%0 = stablehlo.slice %j [2:4, 0:3] : (tensor<4x3xf32>) -> " + T
        ),
        [],
    ),
    "rows in order": (
        main(
            "%i = stablehlo.iota dim = 0 : tensor<2xi32>\n"
            '%0 = "stablehlo.gather"(%x, %i) <{dimension_numbers = '
            "#stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], "
            "start_index_map = [0], index_vector_dim = 1>, "
            "slice_sizes = array<i64: 1, 3>}> : "
            f"({T}, tensor<2xi32>) -> {T}"
        ),
        [],
    ),
    "dead loop": (
        main(
            f"%w:2 = stablehlo.while(%a = %x, %b = %x) : {T}, {T}\n"
            "cond { %c = stablehlo.constant dense<false> : tensor<i1>\n"
            "stablehlo.return %c : tensor<i1> } do {\n"
            f"stablehlo.return %a, %b : {T}, {T} }}\n"
            f"%0 = stablehlo.negate %x : {T}"
        ),
        ["negate"],
    ),
}


@pytest.mark.parametrize("case", SHORTER)
def test_shorter(interpreter: Interpreter, case: str) -> None:
    text, want = SHORTER[case]
    short = simplified(text)
    assert names(short) == want
    x = np.array([[1.5, -2.25, 0.0], [-0.0, np.inf, 7.0]], np.float32)
    arguments = [x, np.arange(12, dtype=np.float32).reshape(4, 3)]
    arguments = arguments[: 1 + ("%y" in text)]
    for a, b in zip(
        interpreter.run(text, arguments),
        interpreter.run(short, arguments),
        strict=True,
    ):
        np.testing.assert_array_equal(bits(a), bits(b))


KEPT: dict[str, str] = {
    "x + 0.0": main(_constant("0.0") + f"%0 = stablehlo.add %x, %c : {T}"),
    "x * 0.0": main(_constant("0.0") + f"%0 = stablehlo.multiply %x, %c : {T}"),
    "x / 3": main(_constant("3.0") + f"%0 = stablehlo.divide %x, %c : {T}"),
    "x - x": main(f"%0 = stablehlo.subtract %x, %x : {T}"),
    "x ** 0.5": main(_constant("0.5") + f"%0 = stablehlo.power %x, %c : {T}"),
    "x != x": main(
        f"%0 = stablehlo.compare NE, %x, %x : ({T}, {T}) -> tensor<2x3xi1>",
        "tensor<2x3xi1>",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_a_float_may_not_lose_stays(case: str) -> None:
    assert names(simplified(KEPT[case])) == names(KEPT[case])


@pytest.mark.parametrize("case", ["x + 0.0", "x / 3"])
def test_options_allow_more(case: str) -> None:
    assert len(names(simplified(KEPT[case], LOOSE))) <= len(names(KEPT[case]))
    assert simplified(KEPT[case], LOOSE) != simplified(KEPT[case])


def test_padded_parts_become_a_concatenation() -> None:
    half = "tensor<2x1xf32>"
    text = main(
        f"%c = stablehlo.constant dense<0.0> : tensor<f32>\n"
        f"%a = stablehlo.slice %x [0:2, 0:1] : ({T}) -> {half}\n"
        f"%n = stablehlo.exponential %a : {half}\n"
        f"%p = stablehlo.pad %n, %c, low = [0, 2], high = [0, 0], interior = [0, 0] : "
        f"({half}, tensor<f32>) -> {T}\n"
        f"%b = stablehlo.slice %x [0:2, 1:3] : ({T}) -> tensor<2x2xf32>\n"
        f"%q = stablehlo.pad %b, %c, low = [0, 0], high = [0, 1], interior = [0, 0] : "
        f"(tensor<2x2xf32>, tensor<f32>) -> {T}\n"
        f"%0 = stablehlo.add %p, %q : {T}"
    )
    assert "concatenate" in names(simplified(text, LOOSE))
    assert "pad" not in names(simplified(text, LOOSE))
    assert "pad" in names(simplified(text))


def test_narrow_f64() -> None:
    wide = "tensor<2x3xf64>"
    text = main(
        f"%w = stablehlo.convert %x : ({T}) -> {wide}\n"
        "%c = stablehlo.constant dense<0.0> : tensor<f64>\n"
        "%s = stablehlo.reduce(%w init: %c) applies stablehlo.add across "
        f"dimensions = [1] : ({wide}, tensor<f64>) -> tensor<2xf64>\n"
        "%0 = stablehlo.convert %s : (tensor<2xf64>) -> tensor<2xf32>",
        "tensor<2xf32>",
    )
    assert "f64" not in simplified(text, Simplify(narrow_f64=True))
    assert "f64" in simplified(text)


def test_time_is_linear() -> None:
    """A chain that cancels pairwise: work is counted in lines of Python."""

    def chain(length: int) -> int:
        lines = [f"%n0 = stablehlo.exponential %x : {T}"]
        lines += [f"%n{i + 1} = stablehlo.negate %n{i} : {T}" for i in range(length)]
        module = parse(
            main("\n".join(lines) + f"\n%0 = stablehlo.abs %n{length} : {T}")
        )
        events = Counter[str]()

        def trace(_frame: object, event: str, _argument: object) -> Callable:
            events[event] += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            Simplify().run(module)
        finally:
            sys.settrace(before)
        return events["line"]

    assert chain(1000) < 4.4 * chain(250)


def test_every_pattern_has_a_known_op() -> None:
    own = {"pcp.stop_gradient"}
    assert all(name.startswith("stablehlo.") for name in PATTERNS.keys() - own)
