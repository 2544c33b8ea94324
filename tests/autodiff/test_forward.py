"""Forward mode against jax.jvp, on the cases of the reverse mode."""

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
from helpers.gradients import Case, check_jvp
from helpers.interpreter import Interpreter
from helpers.programs import PROGRAMS

CASES = [
    *cases_chlo.CASES,
    *cases_contractions.CASES,
    *cases_control_flow.CASES,
    *cases_data_movement.CASES,
    *cases_elementwise.CASES,
    *cases_linear_algebra.SOLVE,
    *cases_reductions.CASES,
    *cases_scatters.CASES,
    *cases_hard.CASES,
    *cases_composed.CASES,
    *cases_client.CASES,
    *PROGRAMS,
]


#: The interpreter ends its process on these: batches of systems, real transforms.
NOT_INTERPRETED = {"solve_batched", "solve_rhs_only", "spectral"}

#: By default every eighth case; all of them by `make test-full`.
SAMPLED = [
    pytest.param(case, marks=() if i % 8 == 0 else pytest.mark.slow)
    for i, case in enumerate(c for c in CASES if c.name not in NOT_INTERPRETED)
]


@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_jvp(case: Case, interpreter: Interpreter) -> None:
    check_jvp(case, interpreter)
