"""Loops of unknown length, and loops that keep less, against jax."""

import pytest
from helpers.cases_loops import UNKNOWN
from helpers.gradients import Case, check_jvp, check_vjp, derivative_case
from helpers.interpreter import Interpreter


@pytest.mark.parametrize("case", UNKNOWN, ids=str)
def test_unknown_trips(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)
