"""Ways to peers that are slow: the rate, the delay, and nothing else changes."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.simulation.silent_link import SilentLink
from helpers.worlds.communicators import CARRIERS, together, world

from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.transport.event_loop import Loop, Timer
from pcp.runtime.transport.fault_injection import Fault, FaultPlan, Shape
from pcp.runtime.transport.frame import HEADER_BYTES, Frame, Kind


class Way(SilentLink):
    """A link, its group and the clock of `Shape`, in virtual seconds."""

    loop: Loop

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now = 0.0
        self.arrived: list[tuple[float, int]] = []
        self._timers: list[Timer] = []
        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr("pcp.runtime.transport.fault_injection.time", clock)

    def later(self, delay: float, what: Callable[[], None]) -> Timer:
        """As of a group."""
        self._timers.append(Timer(self.now + delay, what))
        return self._timers[-1]

    def close(self, *, crash: bool = False, flush: float = 0.0) -> None:
        """As of a group, and of a link."""
        raise AssertionError("a way is slow, and does not end")

    def send(self, frame: Frame) -> None:
        """As of a link."""
        self.arrived.append((round(self.now, 6), frame.step))

    def run(self) -> list[tuple[float, int]]:
        """All that happens: when each frame leaves, and its number."""
        while self._timers:
            timer = self._timers.pop(0)
            self.now = timer.when
            timer.fire()
        return self.arrived


def test_a_rate_spaces_frames_and_a_delay_shifts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    way = Way(monkeypatch)
    shape = Shape(bytes_per_second=1000.0, delay=0.5)
    for number in range(3):
        payload = memoryview(bytes(1000 - HEADER_BYTES))
        shape.send(way, way, Frame(Kind.DATA, step=number, payload=payload))
    assert way.run() == [(1.5, 0), (2.5, 1), (3.5, 2)]


def test_a_delay_alone_lets_frames_travel_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a long line: all at 0.5 s, not one after another."""
    way = Way(monkeypatch)
    shape = Shape(delay=0.5)
    for number in range(20):
        shape.send(way, way, Frame(Kind.DATA, step=number))
    assert way.run() == [(0.5, number) for number in range(20)]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_rate_limits_and_bytes_stay_right(carrier: str) -> None:
    plan = FaultPlan(shapes=[Shape(peer=1, bytes_per_second=2e6)])
    parts = [np.full(100_000, rank + 1, np.float32) for rank in range(3)]
    with world(carrier, 3, {0: plan}) as members:
        together(members, lambda c: c.all_reduce(parts[c.rank]))
    assert all((part == 6).all() for part in parts)


def test_delayed_messages_travel_side_by_side_in_order() -> None:
    plan = FaultPlan(shapes=[Shape(delay=0.5)])
    with world("tcp", 2, {0: plan}) as members:

        def work(comm: Communicator) -> list[int]:
            if comm.rank == 0:
                for index in range(20):
                    comm.send_async(np.array([index]), 1)
                comm.barrier()
                return []
            got = [int(comm.recv(np.zeros(1, int), 0)[0]) for _ in range(20)]
            comm.barrier()
            return got

        _, got = together(members, work)
    assert got == list(range(20))


def test_a_fault_has_precedence_over_a_shape() -> None:
    fault = Fault("delay", seconds=0.01)
    plan = FaultPlan([fault], [Shape(peer=1, bytes_per_second=1e9)])
    with world("tcp", 2, {0: plan}) as members:
        done = together(members, lambda c: c.all_reduce(np.ones(50_000)))
        assert all((d == 2).all() for d in done)
    assert plan.fired == 1
