"""Convolutions of JAX, written out, in the reference interpreter."""

from typing import Any

import jax
import numpy as np
import pytest
from helpers.oracles.jax_gradients import array, assert_close
from helpers.servers.interpreter import Interpreter
from jax import lax

from pcp.dialect.context import parse
from pcp.passes.legalize.devices.ungroup_convolutions import UngroupConvolutions

NHWC = ("NHWC", "HWIO", "NHWC")

#: Shapes of image and kernel, and what is said of the convolution.
Case = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]
CASES: dict[str, Case] = {
    "groups": ((2, 6, 5, 6), (3, 2, 2, 9), {"feature_group_count": 3}),
    "strided": (
        *((2, 7, 6, 4), (3, 2, 2, 6)),
        {"feature_group_count": 2, "window_strides": (2, 3), "padding": "SAME"},
    ),
    "dilated": (
        *((2, 7, 6, 4), (2, 3, 2, 2)),
        {
            "feature_group_count": 2,
            "lhs_dilation": (2, 1),
            "rhs_dilation": (1, 2),
            "padding": [(1, -1), (0, 2)],
        },
    ),
    "channels_first": (
        *((2, 4, 5, 5), (6, 2, 3, 3)),
        {"feature_group_count": 2, "dimension_numbers": ("NCHW", "OIHW", "NCHW")},
    ),
    "of_one_dimension": (
        *((2, 9, 4), (3, 2, 6)),
        {"feature_group_count": 2, "dimension_numbers": ("NWC", "WIO", "NWC")},
    ),
    # A kernel as large as the image, as in the gradient of a kernel.
    "batch_groups": (
        *((4, 4, 4, 2), (4, 4, 2, 8)),
        {"batch_group_count": 4, "padding": [(1, 1), (1, 1)]},
    ),
    "kernel_gradient": (
        *((3, 6, 6, 4), (5, 5, 3, 4)),
        {
            "batch_group_count": 2,
            "dimension_numbers": ("CHWN", "HWIO", "HWNC"),
            "padding": [(1, 1), (0, 0)],
        },
    ),
}


def _of(case: Case) -> Any:
    image, _, said = case
    rank = len(image) - 2
    plain = {"window_strides": (1,) * rank, "padding": "VALID"}
    if "dimension_numbers" not in said:
        plain["dimension_numbers"] = NHWC
    return lambda x, k: lax.conv_general_dilated(x, k, **(plain | said))


def _written_out(case: Case) -> str:
    shapes = [jax.ShapeDtypeStruct(s, np.float32) for s in case[:2]]
    module = parse(jax.jit(_of(case)).lower(*shapes).as_text())
    UngroupConvolutions().run(module)
    assert module.operation.verify()
    return str(module)


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_same_convolution(name: str, interpreter: Interpreter) -> None:
    case = CASES[name]
    text = _written_out(case)
    assert "stablehlo.convolution" not in text
    image, kernel = (array(*shape) for shape in case[:2])
    (found,) = interpreter.run(text, [image, kernel])
    assert_close(found, _of(case)(image, kernel), 1e-5, name)


@pytest.mark.parametrize(("groups", "made"), [(4, 8), (1, 8)])
def test_depthwise_and_plain_ones_stay(groups: int, made: int) -> None:
    kernel = (3, 3, 4 // groups, made)
    case = (2, 6, 6, 4), kernel, {"feature_group_count": groups}
    assert "stablehlo.convolution" in _written_out(case)
