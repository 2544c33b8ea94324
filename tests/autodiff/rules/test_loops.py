"""Loops of unknown length, and loops that keep less, against jax."""

from dataclasses import replace

import pytest
from helpers.cases.loops import SEGMENTED, UNKNOWN
from helpers.oracles.jax_gradients import (
    Case,
    check_jvp,
    check_vjp,
    derivative_case,
    lowered,
)
from helpers.servers.interpreter import Interpreter

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.errors import PassError


def checkpointed(case: Case, every: str) -> Case:
    """The case with its loops marked; the mark must be there to test anything."""
    module = parse(lowered(case))
    pipeline(f"builtin.module(pcp-checkpoint-loops{{every={every}}})").run(module)
    text = str(module)
    assert "pcp.checkpoint" in text or case.name == "length_1"
    return replace(case, text=text)


def sampled(cases: list[Case], step: int) -> list:
    """Every `step`-th by default, the others in the slow run."""
    return [
        pytest.param(case, marks=() if i % step == 0 else pytest.mark.slow)
        for i, case in enumerate(cases)
    ]


@pytest.mark.parametrize("case", UNKNOWN, ids=str)
def test_unknown_trips(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)


@pytest.mark.parametrize("case", sampled(UNKNOWN, 4), ids=str)
def test_unknown_trips_forward(case: Case, interpreter: Interpreter) -> None:
    check_jvp(case, interpreter)


@pytest.mark.parametrize("case", sampled(UNKNOWN, 5), ids=str)
def test_unknown_trips_forward_over_reverse(
    case: Case, interpreter: Interpreter
) -> None:
    check_jvp(derivative_case(case), interpreter)


@pytest.mark.parametrize("case", sampled(UNKNOWN, 8), ids=str)
def test_unknown_trips_reverse_over_reverse(
    case: Case, interpreter: Interpreter
) -> None:
    check_vjp(derivative_case(case), interpreter)


@pytest.mark.parametrize("every", ["sqrt", "1", "2", "4"])
@pytest.mark.parametrize("case", SEGMENTED, ids=str)
def test_segments(case: Case, every: str, interpreter: Interpreter) -> None:
    check_vjp(checkpointed(case, every), interpreter)


@pytest.mark.parametrize("case", sampled(SEGMENTED, 4), ids=str)
def test_segments_order_two(case: Case, interpreter: Interpreter) -> None:
    derived = derivative_case(checkpointed(case, "sqrt"))
    check_vjp(derived, interpreter)
    check_jvp(derived, interpreter)


@pytest.mark.parametrize("every", ["0", "-1", "often"])
def test_a_bad_length_is_refused(every: str) -> None:
    with pytest.raises(PassError, match='neither "sqrt" nor a positive'):
        pipeline(f"builtin.module(pcp-checkpoint-loops{{every={every}}})").run(
            parse("func.func @main() { return }")
        )
