"""Hard forms and inputs of all chapters, against jax.vjp."""

import pytest
from helpers.cases_hard import CASES
from helpers.gradients import Case, check_vjp
from helpers.interpreter import Interpreter

#: By default every third case; all of them by `make test-full`.
SAMPLED = [
    pytest.param(case, marks=() if i % 3 == 0 else pytest.mark.slow)
    for i, case in enumerate(CASES)
]


@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_vjp(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)
