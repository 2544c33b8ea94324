"""When silence counts, by the times of a loop's turns."""

import pytest

from pcp.runtime.transport.suspension import SuspendDetection


def judged(limit: float, *turns: float) -> list[float]:
    """The turns in which silence of `limit` s counted."""
    suspension = SuspendDetection(max(limit / 2, 0.25), limit)
    found = [now for now in turns if suspension.turned(now)]
    assert suspension.listening == (turns[-1] not in found)
    return found


def test_a_loop_that_turns_judges_always() -> None:
    turns = [100 + 0.05 * i for i in range(50)]
    assert judged(1.0, *turns) == turns
    assert judged(0.08, *turns) == turns, "an idle turn takes more than half of this"


def test_before_the_first_turn_it_was_not_suspended() -> None:
    assert judged(1.0, 1e6, 1e6 + 0.1) == [1e6, 1e6 + 0.1]


def test_after_a_suspension_it_listens_as_long_as_silence_may_last() -> None:
    assert judged(1.0, 0, 0.1, 5.0, 5.1, 5.9, 6.0, 6.1) == [0, 0.1, 6.0, 6.1]


def test_one_suspension_more_while_it_listens_puts_nothing_off() -> None:
    assert judged(1.0, 0, 5.0, 5.8, 6.5, 6.6) == [0, 6.5, 6.6]


@pytest.mark.parametrize("slow", [0.6, 1.5, 40.0])
def test_turns_that_all_take_too_long_judge_too(slow: float) -> None:
    turns = [slow * i for i in range(31)]
    assert len(judged(1.0, *turns)) >= 10


def test_a_pause_that_was_meant_is_none() -> None:
    suspension = SuspendDetection(2.0, 2.0)
    assert suspension.turned(0.0)
    assert suspension.turned(2.9, pause=1.0)
    assert not suspension.turned(6.0, pause=1.0)
