"""A long computation is none, a program that waits for itself is a standstill."""

import itertools

import pytest

from pcp.runtime.program.stall_detector import MOST, Progress


class Process:
    """A clock, and the processor time of a process that works at a share of it."""

    def __init__(self, share: float) -> None:
        self.now = self.used = 0.0
        self.share = share
        self.progress = Progress(lambda: self.now, lambda: self.used)

    def first_stall(self, patience: float, limit: float) -> float | None:
        """When it is first seen, looking each half second; None up to `limit`."""
        for _ in itertools.count():
            if self.progress.stands_still(patience):
                return self.now
            if self.now >= limit:
                return None
            self.now += 0.5
            self.used += 0.5 * self.share
        raise AssertionError


@pytest.mark.parametrize("share", [0.0, 0.05])
def test_an_idle_program_stands_still(share: float) -> None:
    assert Process(share).first_stall(10, 100) == 10.5


@pytest.mark.parametrize("share", [0.2, 1.0, 2.0])
def test_a_busy_one_does_not_up_to_a_limit(share: float) -> None:
    process = Process(share)
    assert process.first_stall(10, 10 * MOST) is None
    assert process.first_stall(10, 1e4) == 10 * MOST + 0.5


def test_it_counts_from_when_work_ends() -> None:
    process = Process(1.0)
    assert process.first_stall(10, 50) is None
    process.share = 0.0
    assert process.first_stall(10, 100) == 60.5


def test_an_exchange_is_waited_for() -> None:
    process = Process(0.0)
    process.progress.moved(1)
    assert process.first_stall(10, 200) is None
    process.progress.moved(-1)
    assert process.first_stall(10, 300) == 210.5


def test_a_new_call_begins_anew() -> None:
    process = Process(0.0)
    process.progress.moved(1)
    process.now = 100.0
    process.progress.begin()
    assert process.first_stall(10, 300) == 110.5


def test_looks_in_quick_succession_count_as_one() -> None:
    """Many imports wait at once; each looks, and none hides what another saw."""
    process = Process(0.0)
    for _ in range(400):
        process.now += 0.05
        process.used += 0.05
        assert not process.progress.stands_still(10)
