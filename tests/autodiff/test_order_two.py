"""Derivatives of derivatives: a gradient program is a program like any other."""

import pytest
from helpers import (
    cases_contractions,
    cases_control_flow,
    cases_data_movement,
    cases_elementwise,
    cases_reductions,
)
from helpers.gradients import Case, check_jvp, check_vjp, derivative_case
from helpers.interpreter import Interpreter
from helpers.programs import PROGRAMS

#: At these points the second derivative is a convention of its own: ties (a mask
#: that is right to first order), kinks, poles, and types too narrow to compare.
FIRST_ORDER_ONLY = {
    "max_ties",
    "min_ties",
    "max_pool_ties",
    "scatter_max_ties",
    "product_zeros",
    "convert_f16",
    "convert_bf16",
    "bf16",
    "bf16_to_f32",
    "reduce_precision",
    "reduce_precision_half",
    "select_and_scatter",
    "spectral",
    "cnn",
}
CASES = [
    case
    for case in (
        *cases_control_flow.CASES,
        *cases_contractions.CASES,
        *cases_data_movement.CASES,
        *cases_elementwise.CASES,
        *cases_reductions.CASES,
        *PROGRAMS,
    )
    if case.name not in FIRST_ORDER_ONLY and "edges" not in case.name
]
SAMPLED = [
    pytest.param(case, marks=() if i % 17 == 0 else pytest.mark.slow)
    for i, case in enumerate(CASES)
]


@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_gradient_of_gradient(case: Case, interpreter: Interpreter) -> None:
    check_vjp(derivative_case(case), interpreter)


@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_hessian_vector_product(case: Case, interpreter: Interpreter) -> None:
    check_jvp(derivative_case(case), interpreter)
