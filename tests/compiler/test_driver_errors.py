"""What a driver refuses, in one line with a place."""

import pytest
from helpers.models.stablehlo_small import (
    FORWARD,
    TRAIN,
)

from pcp.bundle import Bundle
from pcp.compiler import driver, iree
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import CompileError, ConfigError, IRError, PassError, PcpError


def compile(text: str, *targets: str, **options: object) -> Bundle:
    chosen = CompileOptions(targets=targets or ("cpu",), **options)  # pyright: ignore[reportArgumentType]
    return driver.compile(parse(text), chosen)


FOURIER = """
func.func @main(%x: tensor<4099xcomplex<f32>>) -> tensor<4099xcomplex<f32>> {
  %0 = stablehlo.fft %x, type = FFT, length = [4099]
    : (tensor<4099xcomplex<f32>>) -> tensor<4099xcomplex<f32>>
  return %0 : tensor<4099xcomplex<f32>>
}
"""

ERRORS: dict[str, tuple[str, dict[str, object], type[PcpError], str]] = {
    "not a scalar": (
        TRAIN.replace("-> tensor<f32> {", "-> tensor<4x7xf32> {").replace(
            "return %loss : tensor<f32>", "return %d : tensor<4x7xf32>"
        ),
        {"mode": "train"},
        PcpError,
        r"m\.mlir:\d+:\d+: .*tensor<4x7xf32>",
    ),
    "optimizer without a loss": (
        FORWARD,
        {"optimizer": "adamw"},
        CompileError,
        r"m\.mlir: an optimizer or algorithm was given, but @main does not return",
    ),
    "unknown optimizer": (TRAIN, {"optimizer": "adam"}, ConfigError, "mean 'adamw'"),
    "unknown key": (TRAIN, {"optimizer": "adamw{lrate=1}"}, ConfigError, "'lrate'"),
    "unknown algorithm": (TRAIN, {"algorithm": "dilco"}, ConfigError, "'diloco'"),
    "no such entry": (
        TRAIN,
        {"entry": "mian"},
        CompileError,
        r"no function @mian \(it has: @main\).*--entry",
    ),
    "dynamic shape": (
        FORWARD.replace("4x8", "?x8"),
        {"mode": "forward"},
        IRError,
        r"m\.mlir:\d+:\d+: ",
    ),
    "missing rule": (
        TRAIN.replace(
            "%h = ",
            "%u:2 = stablehlo.custom_call @f(%embed) "
            ": (tensor<7x5xf32>) -> (tensor<7x5xf32>, tensor<f32>)\n    %h = ",
        ).replace('"(%embed, %x)', '"(%u#0, %x)'),
        {},
        IRError,
        r"m\.mlir:\d+:\d+: .*custom_call",
    ),
    "an op without a kernel": (FOURIER, {}, PassError, r"m\.mlir:3:8: .*fft"),
    "a dtype beyond a bundle": (
        FORWARD.replace("f32", "f8E3M4"),
        {},
        CompileError,
        "cannot hold f8E3M4",
    ),
    "unknown role": (
        TRAIN.replace('pcp.role = "data"', 'pcp.role = "date"'),
        {"mode": "forward"},
        CompileError,
        r"m\.mlir:\d+:\d+: .*unknown pcp\.role 'date'.*Did you mean 'data'",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_are_one_line_with_a_place(case: str) -> None:
    text, options, kind, message = ERRORS[case]
    with pytest.raises(kind, match=message) as caught:
        compile(text, source="m.mlir", **options)
    assert "\n" not in str(caught.value)


def test_an_error_of_irees_points_into_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(text: str, flags: object, **_: object) -> bytes:
        assert 'loc("-":4:8)' in text or '"-":4:8' in text
        raise iree.Failure("cannot tile", "4:8")

    monkeypatch.setattr(iree, "compile_text", refuse)
    with pytest.raises(CompileError) as caught:
        compile("\n" + FORWARD, source="m.mlir")
    assert str(caught.value) == "m.mlir:4:8: target cpu: cannot tile"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ()}, "no target"),
        ({"targets": ("sm_1",)}, "unknown"),
        ({"mode": "trian"}, "Did you mean 'train'"),
        ({"jobs": 0}, "at least one"),
        ({"mode": "forward", "optimizer": "adamw"}, "has no optimizer"),
        ({"opt_level": "O9"}, "known: O3, O2, O1"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        driver.compile(parse(FORWARD), CompileOptions(**options))  # pyright: ignore[reportArgumentType]
