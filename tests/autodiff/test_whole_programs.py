"""Whole programs as users write them: gradients through IREE against jax.

    pcp-vjp ─► pcp-simplify ─► pcp-legalize ─► iree-compile ─► equal to jax at 1e-4

of the largest element of each tensor (`gradients.assert_near`). Two that
IREE cannot run are checked in the reference interpreter. With `test_programs` these
are sixty-four models.
"""

from dataclasses import replace

import jax
import pytest
from helpers.models import branching, losses, sequence, vision
from helpers.models.jax_small import PROGRAM_TOLERANCE
from helpers.oracles.full_stack import Group
from helpers.oracles.jax_gradients import (
    TOLERANCE,
    Case,
    assert_near,
    check_jvp,
    check_vjp,
    derivative_case,
)
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree

FAST = ("mixture_of_experts", "maml")


def _with_tolerance(case: Case) -> Case:
    """1e-4, of which `Group.check` allows twice the case's own."""
    own = PROGRAM_TOLERANCE if case.tolerance == TOLERANCE else case.tolerance
    return replace(case, tolerance=own / 2, close=assert_near)


def _text(case: Case) -> Case:
    """`adaptive` runs as a while loop; its twin with fixed rounds is the oracle."""
    if case.name != "adaptive":
        return case
    loop = jax.jit(losses.adaptive).lower(*case.args).as_text()
    return replace(case, text=loop)


#: IREE 3.13 cannot run these gradients; the reference interpreter does.
NOT_IN_IREE = {
    "mobilenet": "'vector.contract' op invalid accumulator/result vector shape",
    "adaptive": "ref is null: a loop's result in a loop of unknown length",
}

EVERY = [
    _text(_with_tolerance(case))
    for chapter in (vision, sequence, losses)
    for case in chapter.PROGRAMS
]
BRANCHES = Group([_with_tolerance(case) for case in branching.PROGRAMS])
#: Of the others `test_order_two` has ten; second derivatives of bf16 are noise.
SECOND = [case for case in BRANCHES.cases if case.name != "narrow_gpt"]
QUICK = Group([case for case in EVERY if case.name in FAST])
REST = Group([case for case in EVERY if case.name not in {*FAST, *NOT_IN_IREE}])


@pytest.mark.slow  # test_programs.py has others
@pytest.mark.parametrize("case", QUICK.cases, ids=str)
def test_gradient(case: Case, iree: Iree) -> None:
    QUICK.check(case, iree)


@pytest.mark.slow
@pytest.mark.parametrize("case", REST.cases, ids=str)
def test_gradient_of_the_rest(case: Case, iree: Iree) -> None:
    REST.check(case, iree)


@pytest.mark.slow
@pytest.mark.parametrize("case", BRANCHES.cases, ids=str)
def test_gradient_of_programs_with_branches(case: Case, iree: Iree) -> None:
    BRANCHES.check(case, iree)


@pytest.mark.slow
@pytest.mark.parametrize("case", SECOND, ids=str)
def test_hessian_vector_product(case: Case, interpreter: Interpreter) -> None:
    check_jvp(derivative_case(case), interpreter)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in EVERY if c.name in NOT_IN_IREE], ids=str)
def test_gradient_in_the_interpreter(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)


def test_there_are_enough() -> None:
    assert len({case.name for case in EVERY}) == len(EVERY) >= 45
