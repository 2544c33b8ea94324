"""Rules of the control flow chapter against jax.vjp."""

import pytest
from helpers.cases.control_flow import BRANCHES, CASES
from helpers.oracles.jax_gradients import Case, check_vjp, derivative_case
from helpers.servers.interpreter import Interpreter

from pcp.autodiff.rules import branches


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vjp(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)


@pytest.fixture
def branches_that_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every branch keeps what its reverse needs, as one that draws numbers does."""
    monkeypatch.setattr(branches, "once_only", lambda region: True)


@pytest.mark.usefixtures("branches_that_run_once")
@pytest.mark.parametrize("case", BRANCHES, ids=str)
def test_branches_that_run_once(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)


@pytest.mark.usefixtures("branches_that_run_once")
@pytest.mark.parametrize("case", BRANCHES[5::4], ids=str)
def test_branches_that_run_once_twice(case: Case, interpreter: Interpreter) -> None:
    check_vjp(derivative_case(case), interpreter)
