"""Names, roles and first values on the arguments of @main."""

import numpy as np
import pytest

from pcp.dialect.context import parse
from pcp.errors import IRError
from pcp.frontends.signature import (
    Argument,
    annotate,
    arguments_of,
    describe_init,
    require_scalar_loss,
)

RANDOM = np.random.default_rng(0)


def _module(result: str = "tensor<f32>"):
    return parse(
        f"func.func @main(%a: tensor<2xf32>, %b: {result}) -> {result} "
        f"{{ return %b : {result} }}"
    )


def test_annotations_survive_printing() -> None:
    module = _module()
    arguments = [Argument("w.0", "param", "normal(0.02)"), Argument("x", "data")]
    annotate(module, arguments)
    assert arguments_of(parse(str(module))) == arguments


def test_without_annotations_all_is_data() -> None:
    assert arguments_of(_module()) == [
        Argument("arg0", "data"),
        Argument("arg1", "data"),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([Argument("w", "param")], "has 2 arguments, not 1"),
        ([Argument("w", "weights"), Argument("x", "data")], "role 'weights' is none"),
    ],
)
def test_bad_annotations_are_refused(arguments, message: str) -> None:
    with pytest.raises(IRError, match=message):
        annotate(_module(), arguments)


def test_a_missing_function_lists_what_there_is() -> None:
    with pytest.raises(IRError, match=r"no function @other \(it has: @main\)"):
        arguments_of(_module(), "other")


@pytest.mark.parametrize("result", ["tensor<4xf32>", "tensor<i32>", "tensor<1xf32>"])
def test_a_loss_is_one_float_scalar(result: str) -> None:
    require_scalar_loss(_module("tensor<f32>"))
    require_scalar_loss(_module("tensor<bf16>"))
    with pytest.raises(IRError, match="returns its loss, one floating-point scalar"):
        require_scalar_loss(_module(result))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.zeros((3, 4), "f"), "zeros"),
        (np.ones(5, "f"), "ones"),
        (np.full(5, -0.25, "f"), "uniform(-0.25,-0.25)"),
        (np.arange(4), None),
        (np.zeros(0, "f"), None),
        (np.ones(3, np.complex64), None),
    ],
)
def test_constants_are_exact(values: np.ndarray, expected: str | None) -> None:
    assert describe_init(values) == expected


@pytest.mark.parametrize("size", [256, 4096])
@pytest.mark.parametrize("seed", range(20))
def test_distributions_are_recognised(size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    family, parameters = _read(describe_init(random.normal(0, 0.02, size)))
    assert family == "normal"
    assert parameters == pytest.approx([0.02], rel=4 / np.sqrt(2 * size))
    family, (low, high) = _read(describe_init(random.uniform(-0.1, 0.1, size)))
    assert family == "uniform"
    assert [low, high] == pytest.approx([-0.1, 0.1], rel=0.1 if size == 256 else 2e-3)


def test_means_are_kept() -> None:
    family, (mean, std) = _read(describe_init(RANDOM.normal(3, 0.5, 4096)))
    assert (family, mean, std) == (
        "normal",
        pytest.approx(3, 0.01),
        pytest.approx(0.5, 0.05),
    )
    family, (low, high) = _read(describe_init(RANDOM.uniform(2, 3, 4096)))
    assert (family, low, high) == (
        "uniform",
        pytest.approx(2, 0.01),
        pytest.approx(3, 0.01),
    )


def _read(text: str | None) -> tuple[str, list[float]]:
    assert text
    family, _, rest = text.partition("(")
    return family, [float(part) for part in rest.removesuffix(")").split(",")]
