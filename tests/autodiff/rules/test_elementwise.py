"""Elementwise rules against jax.vjp."""

import pytest
from helpers.cases.elementwise import CASES
from helpers.oracles.jax_gradients import Case, check_vjp
from helpers.servers.interpreter import Interpreter


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vjp(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)
