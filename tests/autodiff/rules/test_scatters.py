"""Rules of scatters against jax.vjp, in both orders where zeros meet."""

import pytest
from helpers.cases_scatters import CASES, PRODUCTS
from helpers.gradients import Case, check_vjp, derivative_case
from helpers.interpreter import Interpreter


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vjp(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)


@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products_are_exact_in_the_second_order(
    case: Case, interpreter: Interpreter
) -> None:
    check_vjp(derivative_case(case), interpreter)
