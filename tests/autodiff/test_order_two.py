"""Derivatives of derivatives: a gradient program is a program like any other."""

import pytest
from helpers import (
    cases_chlo,
    cases_client,
    cases_composed,
    cases_contractions,
    cases_control_flow,
    cases_data_movement,
    cases_elementwise,
    cases_hard,
    cases_linear_algebra,
    cases_reductions,
    cases_scatters,
)
from helpers.gradients import Case, check_jvp, check_vjp, derivative_case
from helpers.interpreter import Interpreter
from helpers.programs import PROGRAMS

#: At these points the second derivative is a convention of its own: ties (a mask
#: that is right to first order), kinks, poles, and types too narrow to compare.
FIRST_ORDER_ONLY = {
    "max_ties",
    "min_ties",
    "max_init_tie",
    "max_pool_ties",
    "scatter_max_ties",
    "product_infinite",
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
#: jax has no second derivative of ragged_dot; `ragged_rows_written_out` has.
NO_ORACLE = {"ragged_rows", "ragged_rows_batched"}
#: The interpreter ends its process on systems in batches.
NOT_INTERPRETED = {"solve_batched", "solve_rhs_only"}
SKIPPED = FIRST_ORDER_ONLY | NO_ORACLE | NOT_INTERPRETED
CASES = [
    case
    for case in (
        *cases_control_flow.CASES,
        *cases_contractions.CASES,
        *cases_data_movement.CASES,
        *cases_elementwise.CASES,
        *cases_reductions.CASES,
        *cases_chlo.CASES,
        *cases_client.CASES,
        *cases_composed.CASES,
        *cases_hard.CASES,
        *cases_linear_algebra.SOLVE,
        *cases_scatters.CASES,
        *PROGRAMS,
    )
    if case.name not in SKIPPED and "edges" not in case.name
]


def sampled(first: int) -> list[object]:
    """Every sixteenth by default; all of them by `make test-full`."""
    return [
        pytest.param(case, marks=() if i % 16 == first else pytest.mark.slow)
        for i, case in enumerate(CASES)
    ]


@pytest.mark.parametrize("case", sampled(0), ids=str)
def test_gradient_of_gradient(case: Case, interpreter: Interpreter) -> None:
    check_vjp(derivative_case(case), interpreter)


@pytest.mark.parametrize("case", sampled(8), ids=str)
def test_hessian_vector_product(case: Case, interpreter: Interpreter) -> None:
    check_jvp(derivative_case(case), interpreter)
