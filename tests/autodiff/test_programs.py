"""Whole programs: gradients against jax, in the interpreter and through IREE."""

from dataclasses import replace

import pytest
from helpers.models.jax_small import PROGRAM_TOLERANCE, PROGRAMS
from helpers.oracles.jax_gradients import Case, assert_near, check_vjp
from helpers.oracles.legalized import Legalized
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree

#: Compiled by default; the others are interpreted, all both ways by `make test-full`.
THROUGH_IREE = {"spectral"}

#: The reference interpreter ends its process on real Fourier transforms.
NOT_INTERPRETED = {"spectral"}


def _case(case: Case) -> Case:
    return replace(case, tolerance=PROGRAM_TOLERANCE, close=assert_near)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=pytest.mark.slow if c.name in THROUGH_IREE else ())
        for c in PROGRAMS
        if c.name not in NOT_INTERPRETED
    ],
    ids=str,
)
def test_interpreted(case: Case, interpreter: Interpreter) -> None:
    check_vjp(_case(case), interpreter)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=() if c.name in THROUGH_IREE else pytest.mark.slow)
        for c in PROGRAMS
    ],
    ids=str,
)
def test_compiled(case: Case, iree: Iree) -> None:
    check_vjp(_case(case), Legalized(iree))
