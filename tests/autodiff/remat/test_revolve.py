"""Revolve's schedule: runnable, within its slots, and optimal."""

from functools import cache

import pytest

from pcp.autodiff.remat.revolve import extra_steps, revolve
from pcp.errors import PassError


@cache
def optimum(steps: int, slots: int) -> int:
    """The dynamic program that defines the optimum."""
    if slots == 1:
        return steps * (steps - 1) // 2
    return min(
        (
            k + optimum(steps - k, slots - 1) + optimum(k, slots)
            for k in range(1, steps)
        ),
        default=0,
    )


def run(steps: int, slots: int) -> tuple[int, int, list[int]]:
    """(steps advanced, most states stored, order of reversal), each move checked."""
    stored, at, advanced, most, order = {0}, 0, 0, 1, []
    for action in revolve(steps, slots):
        if action.kind == "advance":
            assert action.start in stored
            at = action.end
            advanced += action.end - action.start
        elif action.kind == "store":
            assert at == action.start
            stored.add(at)
            most = max(most, len(stored))
        elif action.kind == "free":
            stored.remove(action.start)
        else:
            assert action.start in stored or at == action.start
            order.append(action.start)
    return advanced, most, order


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 7, 30])
def test_schedule_is_optimal(slots: int) -> None:
    for steps in (1, 2, 3, 10, 24, 25):
        advanced, most, order = run(steps, slots)
        assert order == list(reversed(range(steps)))
        assert most <= slots
        assert advanced == optimum(steps, slots) == extra_steps(steps, slots)


@pytest.mark.parametrize(
    ("steps", "slots", "extra"),
    [(10, 3, 15), (24, 3, 61), (24, 4, 51), (48, 4, 136), (48, 6, 108), (96, 7, 243)],
)
def test_published_values(steps: int, slots: int, extra: int) -> None:
    assert extra_steps(steps, slots) == run(steps, slots)[0] == extra


@pytest.mark.parametrize(("steps", "slots"), [(0, 1), (4, 0)])
def test_impossible_chains_are_refused(steps: int, slots: int) -> None:
    with pytest.raises(PassError, match="must be at least 1"):
        revolve(steps, slots)
