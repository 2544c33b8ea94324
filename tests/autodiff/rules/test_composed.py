"""Ops that stand for others, against jax.vjp and jax.jvp."""

import pytest
from helpers import cases_client, cases_composed
from helpers.gradients import Case, check_jvp, check_vjp
from helpers.interpreter import Interpreter

CASES = [*cases_composed.CASES, *cases_client.CASES]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vjp(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)


@pytest.mark.parametrize("case", CASES[::4], ids=str)
def test_jvp(case: Case, interpreter: Interpreter) -> None:
    check_jvp(case, interpreter)
