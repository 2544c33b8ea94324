"""Forward mode against jax.jvp, on the cases of the reverse mode."""

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
from helpers.oracles.jax_gradients import Case, check_jvp
from helpers.servers.interpreter import Interpreter

CASES = [
    *chlo.CASES,
    *contractions.CASES,
    *control_flow.CASES,
    *data_movement.CASES,
    *elementwise.CASES,
    *linear_algebra.SOLVE,
    *reductions.CASES,
    *scatters.CASES,
    *hard.CASES,
    *composed.CASES,
    *client.CASES,
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
