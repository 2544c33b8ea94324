"""The proof that a maximum only shifts: right gradients, and only where it holds."""

import pytest
from helpers.cases.shifts import CANCELLING, CASES, KEPT, X
from helpers.oracles.jax_gradients import Case, check_vjp, lowered
from helpers.servers.interpreter import Interpreter

from pcp.autodiff.core.functions import body, find, inline_calls
from pcp.autodiff.core.shifts import cancels
from pcp.dialect.context import parse


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)


def maxima(fn) -> list[bool]:
    """For each maximum of a row in the program, whether it is proved to cancel."""
    module = parse(lowered(Case("", fn, (X,))))
    with module.context:
        main = find(module, "main")
        inline_calls(module, main)
    ops = [op.operation for op in body(main).operations]
    return [cancels(op) for op in ops if "maximum" in str(op) and len(op.regions)]


@pytest.mark.parametrize("fn", CANCELLING, ids=lambda f: f.__name__)
def test_proved(fn) -> None:
    assert maxima(fn) == [True]


@pytest.mark.parametrize("fn", KEPT, ids=lambda f: f.__name__)
def test_not_proved(fn) -> None:
    found = maxima(fn)
    assert found
    assert not all(found)
