"""Ops that stand for others, against jax.vjp."""

import pytest
from helpers import cases_client, cases_composed
from helpers.gradients import Case, check_vjp
from helpers.interpreter import Interpreter

CASES = [*cases_composed.CASES, *cases_client.CASES]

#: By default every second case; all of them by `make test-full`.
SAMPLED = [
    pytest.param(case, marks=() if i % 2 == 0 else pytest.mark.slow)
    for i, case in enumerate(CASES)
]


@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_vjp(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)
