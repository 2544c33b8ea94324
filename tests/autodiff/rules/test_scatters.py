"""Rules of scatters against jax.vjp, in both orders where zeros meet."""

import pytest
from helpers.cases.scatters import CASES, PRODUCTS
from helpers.oracles.jax_gradients import Case, check_vjp, derivative_case
from helpers.servers.interpreter import Interpreter

#: By default every second case; all of them by `make test-full`.
SAMPLED = [
    pytest.param(case, marks=() if i % 2 == 0 else pytest.mark.slow)
    for i, case in enumerate(CASES)
]


@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_vjp(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products_are_exact_in_the_second_order(
    case: Case, interpreter: Interpreter
) -> None:
    check_vjp(derivative_case(case), interpreter)
