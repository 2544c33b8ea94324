"""No drawn schedule of faults makes the protocol of training wrong, or stop."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from helpers.simulation.drawn_schedules import wrong


@pytest.mark.slow  # test_run_schedules.py has that of the state machine
def test_a_seed_gives_the_same_run() -> None:
    assert wrong(5, 3, twice=True, faults=6) == []


def test_no_schedule_stops_a_run_or_makes_it_wrong() -> None:
    assert wrong(0, 12) == []


def test_no_schedule_on_own_clocks_does() -> None:
    assert wrong(0, 8, own_clocks=True) == []


def test_a_shepherd_killed_at_a_commit_has_kept_that_round() -> None:
    assert wrong(0, 6, faults=2, aimed=[("commit line", "shepherd")] * 2) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("own_clocks", [False, True])
def test_no_schedule_of_many_thousands_does(own_clocks: bool) -> None:
    step, count = 250, 10_000
    part = partial(wrong, count=step, seconds=3600, own_clocks=own_clocks)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(part, range(0, count, step))
        assert [line for lines in found for line in lines] == []


ALONE = [("ready", "others")] * 2 + [("round_start", "others"), ("ready", "newcomer")]
BETWEEN_TWO_LINES = [("returned line", "shepherd")] * 2


AT_ALONE = {"workers": 2, "faults": 3, "aimed": ALONE}
AT_TWO_LINES = {
    "workers": 3,
    "faults": 2,
    "late": "drop",
    "quorum": 2,
    "grace_seconds": 0.02,
    "aimed": BETWEEN_TWO_LINES,
}


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [AT_ALONE, AT_TWO_LINES])
def test_no_aimed_schedule_does(fixed: dict[str, Any]) -> None:
    """Slow: the mutants below try the first of these, those that notice them."""
    assert wrong(0, 40, **fixed) == []


@pytest.mark.parametrize(
    ("mutant", "first", "count", "fixed"),
    [
        pytest.param("prepared", 0, 40, AT_TWO_LINES, marks=pytest.mark.slow),
        ("undo", 0, 20, {}),
    ],
)
def test_a_mutant_is_noticed(
    mutant: str, first: int, count: int, fixed: dict[str, Any]
) -> None:
    """By a schedule of so many; neither it nor one before it finds any other fault."""
    (found,) = wrong(first, count, mutant=mutant, **fixed)
    assert found.startswith(f"{mutant} at seed")
