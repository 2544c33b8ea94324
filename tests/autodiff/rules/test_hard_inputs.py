"""Hard forms and inputs of all chapters, against jax.vjp."""

import numpy as np
import pytest
from helpers.cases.hard import CASES
from helpers.oracles.jax_gradients import Case, check_vjp, lowered, transformed
from helpers.servers.interpreter import Interpreter
from jax import lax

#: By default every third case; all of them by `make test-full`.
SAMPLED = [
    pytest.param(case, marks=() if i % 3 == 0 else pytest.mark.slow)
    for i, case in enumerate(CASES)
]


@pytest.mark.parametrize("case", SAMPLED, ids=str)
def test_vjp(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)


@pytest.mark.parametrize("size", [2, 70])
@pytest.mark.parametrize("pass_", ["pcp-vjp", "pcp-jvp"])
def test_a_pool_of_nan_has_no_finite_derivative(
    size: int, pass_: str, interpreter: Interpreter
) -> None:
    """jax gives g to one element or the other. Both ways of small and large windows."""

    def pool(x):
        return lax.reduce_window(x, -np.inf, lax.max, (size,), (size,), "VALID")

    x = np.arange(2.0 * size, dtype=np.float32)
    x[1] = np.nan
    more = np.ones(2 if pass_ == "pcp-vjp" else x.shape, np.float32)
    derived = transformed(lowered(Case("pool", pool, (x,))), pass_)
    _, found = interpreter.run(derived, [x, more])
    first, second = np.split(found, 2)
    assert np.isnan(first).any()
    assert np.isfinite(second).all()
    assert second.sum() == 1
