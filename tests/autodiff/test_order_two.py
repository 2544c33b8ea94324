"""Derivatives of derivatives: a gradient program is a program like any other."""

import pytest
from helpers.cases import (
    chlo,
    client,
    composed,
    contractions,
    control_flow,
    data_movement,
    elementwise,
    hard,
    linear_algebra,
    reductions,
    scatters,
)
from helpers.models.jax_small import PROGRAMS
from helpers.oracles.jax_gradients import Case, check_jvp, check_vjp, derivative_case
from helpers.servers.interpreter import Interpreter

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
        *control_flow.CASES,
        *contractions.CASES,
        *data_movement.CASES,
        *elementwise.CASES,
        *reductions.CASES,
        *chlo.CASES,
        *client.CASES,
        *composed.CASES,
        *hard.CASES,
        *linear_algebra.SOLVE,
        *scatters.CASES,
        *PROGRAMS,
    )
    if case.name not in SKIPPED and "edges" not in case.name
]


def sampled(first: int) -> list[object]:
    """One of 32 by default; all of them by `make test-full`."""
    return [
        pytest.param(case, marks=() if i % 32 == first else pytest.mark.slow)
        for i, case in enumerate(CASES)
    ]


@pytest.mark.parametrize("case", sampled(0), ids=str)
def test_gradient_of_gradient(case: Case, interpreter: Interpreter) -> None:
    check_vjp(derivative_case(case), interpreter)


@pytest.mark.parametrize("case", sampled(16), ids=str)
def test_hessian_vector_product(case: Case, interpreter: Interpreter) -> None:
    check_jvp(derivative_case(case), interpreter)
