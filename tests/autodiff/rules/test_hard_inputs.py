"""Hard forms and inputs of all chapters, against jax.vjp."""

import pytest
from helpers.cases_hard import CASES
from helpers.gradients import Case, check_vjp
from helpers.interpreter import Interpreter


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vjp(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)
