"""Whole programs: gradients against jax, in the interpreter and through IREE."""

from dataclasses import replace

import pytest
from helpers.models.jax_small import PROGRAM_TOLERANCE, PROGRAMS
from helpers.oracles.jax_gradients import Case, assert_near, check_vjp
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse

#: Compiled by default; the others are interpreted, all both ways by `make test-full`.
THROUGH_IREE = {"gpt", "cnn", "lstm", "spectral"}

#: The reference interpreter ends its process on real Fourier transforms.
NOT_INTERPRETED = {"spectral"}


class Compiled:
    """IREE with the legalisation that a compile does first."""

    def __init__(self, iree: Iree) -> None:
        self.iree = iree

    def run(self, text, arguments):
        module = parse(text)
        pipeline("builtin.module(pcp-legalize,cse)").run(module)
        return self.iree.run(str(module), arguments)


@pytest.fixture(scope="module")
def compiled(iree: Iree) -> Compiled:
    return Compiled(iree)


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
def test_compiled(case: Case, compiled: Compiled) -> None:
    check_vjp(_case(case), compiled)
