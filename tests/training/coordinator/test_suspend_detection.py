"""When silence counts, by the times of a loop's turns."""

import pytest

from pcp.training.coordinator.suspend_detection import Standstill


def judged(limit: float, *turns: float) -> list[float]:
    """The turns in which silence counted."""
    standstill = Standstill(limit)
    return [now for now in turns if standstill.over(now)]


def test_a_loop_that_turns_judges_always() -> None:
    turns = [100 + 0.05 * i for i in range(50)]
    assert judged(1.0, *turns) == turns
    assert judged(0.08, *turns) == turns, "an idle turn takes more than half of this"


def test_before_the_first_turn_it_did_not_stand_still() -> None:
    assert judged(1.0, 1e6, 1e6 + 0.1) == [1e6, 1e6 + 0.1]


def test_after_a_standstill_it_listens_as_long_as_silence_may_last() -> None:
    assert judged(1.0, 0, 0.1, 5.0, 5.1, 5.9, 6.0, 6.1) == [0, 0.1, 6.0, 6.1]


def test_one_standstill_more_while_it_listens_puts_nothing_off() -> None:
    assert judged(1.0, 0, 5.0, 5.8, 6.5, 6.6) == [0, 6.5, 6.6]


@pytest.mark.parametrize("slow", [0.6, 1.5, 40.0])
def test_turns_that_all_take_too_long_judge_too(slow: float) -> None:
    turns = [slow * i for i in range(31)]
    assert len(judged(1.0, *turns)) >= 10
