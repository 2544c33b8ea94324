"""Every element type of every op against jax.vjp."""

from contextlib import nullcontext

import jax
import pytest
from helpers.cases_dtypes import CASES, Typed
from helpers.gradients import check_vjp
from helpers.interpreter import Interpreter

#: The interpreter ends its process on these; IREE runs them in the tests of the
#: chapter on linear algebra.
NOT_INTERPRETED = {"fft_complex64", "ifft_complex64"}

#: By default every nineteenth; all of them by `make test-full`.
SAMPLED = [
    pytest.param(typed, marks=() if i % 19 == 0 else pytest.mark.slow)
    for i, typed in enumerate(c for c in CASES if c.name not in NOT_INTERPRETED)
]


@pytest.mark.parametrize("typed", SAMPLED, ids=str)
def test_vjp(typed: Typed, interpreter: Interpreter) -> None:
    with jax.enable_x64(True) if typed.is_double else nullcontext():
        check_vjp(typed.case(), interpreter)
