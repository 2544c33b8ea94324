"""Ops that stand for others, against jax.vjp."""

import pytest
from helpers.cases import client, composed
from helpers.oracles.jax_gradients import Case, check_vjp
from helpers.servers.interpreter import Interpreter

CASES = [*composed.CASES, *client.CASES]

#: By default every second case; all of them by `make test-full`.
SAMPLED = [
    pytest.param(case, marks=() if i % 2 == 0 else pytest.mark.slow)
    for i, case in enumerate(CASES)
]


@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_vjp(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)
