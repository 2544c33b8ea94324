"""Ranks in reserve, of processes that only remember what they were told."""

from dataclasses import dataclass, field

import pytest

from pcp.errors import RuntimeFault
from pcp.serving import spares as room
from pcp.serving.spares import Spares


@dataclass
class Fake:
    """A spare that remembers."""

    rank: int
    pid: int
    code: int | None = None
    told: list[tuple[int, str]] = field(default_factory=list)

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9

    def wait(self, timeout: float | None = None) -> int:
        assert self.code is not None
        return self.code

    def loaded(self, seconds: float) -> bool:
        return self.code is None

    def take(self, rank: int, address: str) -> None:
        if self.code is not None:
            raise BrokenPipeError
        self.told.append((rank, address))


class Reserve:
    """Spares of fakes, on a clock that the test moves."""

    def __init__(self, count: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[Fake] = []
        self.said: list[str] = []
        self.now = 100.0
        monkeypatch.setattr(room.time, "monotonic", lambda: self.now)
        self.spares = Spares(count, size, self._start, self.said.append)

    def _start(self, rank: int) -> Fake:
        self.started.append(Fake(rank, 1000 + len(self.started)))
        return self.started[-1]


def test_the_spares_are_of_different_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Reserve(4, 4, monkeypatch)
    reserve.spares.tend(now=True)
    assert [fake.rank for fake in reserve.started] == [1, 2, 3, 1]
    assert reserve.spares.pids == [1000, 1001, 1002, 1003]


def test_the_spare_of_a_rank_takes_its_place_before_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reserve = Reserve(2, 3, monkeypatch)
    reserve.spares.tend(now=True)
    first, second = reserve.started
    assert reserve.spares.take(2, "here:1") is second
    assert reserve.spares.take(2, "here:2") is first
    assert (second.told, first.told) == ([(2, "here:1")], [(2, "here:2")])
    assert reserve.spares.take(1, "here:3") is None
    reserve.spares.tend(now=True)
    assert [fake.rank for fake in reserve.started[2:]] == [1, 2]


def test_a_spare_that_died_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Reserve(2, 2, monkeypatch)
    reserve.spares.tend(now=True)
    first, second = reserve.started
    first.code = -9
    assert reserve.spares.take(1, "here:1") is second


def test_a_killed_spare_is_replaced_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reserve = Reserve(1, 2, monkeypatch)
    reserve.spares.tend()
    reserve.started[0].kill()
    reserve.spares.tend()  # within the same second nobody looks
    assert len(reserve.started) == 1
    reserve.now += 1.5
    reserve.spares.tend()
    assert len(reserve.started) == 2
    assert reserve.said == ["a spare of rank 1 ended with code -9"]


def test_a_spare_that_cannot_begin_is_not_started_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reserve = Reserve(1, 2, monkeypatch)
    reserve.spares.tend()
    reserve.started[0].code = 2
    reserve.now += 1.5
    reserve.spares.tend()
    reserve.now += 5
    reserve.spares.tend()
    assert len(reserve.started) == 1
    reserve.now += 10
    reserve.spares.tend()
    assert len(reserve.started) == 2


def test_all_have_to_load_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Reserve(2, 3, monkeypatch)
    reserve.spares.tend(now=True)
    reserve.spares.until_loaded(1.0)
    reserve.started[1].code = 2
    with pytest.raises(RuntimeFault, match=r"rank 2 did not load .*its code: 2"):
        reserve.spares.until_loaded(1.0)


def test_all_end_with_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = Reserve(3, 3, monkeypatch)
    reserve.spares.tend(now=True)
    reserve.spares.close()
    assert [fake.code for fake in reserve.started] == [-9, -9, -9]
    assert reserve.spares.pids == []
