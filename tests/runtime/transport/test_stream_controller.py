"""Lanes that are taken into use as long as that makes a link faster."""

import pytest

from pcp.runtime.transport.stream_controller import StreamController

WINDOW, ROUND_TRIP = 4e6, 0.1


class Network:
    """Lanes of one window a round trip each, over a network of some rate."""

    def __init__(self, rate: float, first: int, most: int) -> None:
        self.now, self.rate = 0.0, rate
        self.streams = StreamController(first, most, clock=lambda: self.now)
        self.history = [first]

    def carry(self, seconds: float, *, busy: bool = True) -> None:
        until = self.now + seconds
        while self.now < until:
            if busy:
                self.streams.full()
            else:
                self.streams.rest()
            self.now += ROUND_TRIP / 10
            rate = min(self.rate, self.streams.used * WINDOW / ROUND_TRIP)
            sent = self.now - ROUND_TRIP
            self.streams.acknowledged(int(rate * ROUND_TRIP / 10), sent)
            if self.streams.used != self.history[-1]:
                self.history.append(self.streams.used)


def test_a_fast_network_is_filled() -> None:
    network = Network(rate=400e6, first=3, most=15)
    network.carry(20)
    assert network.streams.used * WINDOW / ROUND_TRIP >= network.rate
    network.carry(200)
    assert network.streams.used * WINDOW / ROUND_TRIP >= network.rate


def test_no_more_are_opened_than_there_are() -> None:
    network = Network(rate=1e12, first=3, most=6)
    network.carry(60)
    assert network.history == [3, 4, 6]


@pytest.mark.parametrize("rate", [10e6, 119e6])
def test_a_network_that_is_full_already_is_hardly_disturbed(rate: float) -> None:
    network = Network(rate=rate, first=3, most=6)
    network.carry(600)
    assert network.streams.used == 3
    tries = network.history.count(4)
    assert network.history == [3, *[4, 3] * tries]
    assert 2 <= tries <= 6  # each try waits twice as long as the one before


def test_a_network_that_becomes_faster_is_noticed() -> None:
    network = Network(rate=50e6, first=3, most=15)
    network.carry(40)
    assert network.streams.used == 3
    network.rate = 500e6
    network.carry(120)
    assert network.streams.used * WINDOW / ROUND_TRIP >= network.rate


def test_a_link_without_enough_to_send_stays_as_it_is() -> None:
    network = Network(rate=1e12, first=3, most=15)
    network.carry(100, busy=False)
    assert network.history == [3]


def test_short_transfers_are_added_up() -> None:
    """Operations wait for each other; only the time in which data waited counts."""
    network = Network(rate=400e6, first=3, most=15)
    for _ in range(60):
        network.carry(0.3)
        network.carry(0.5, busy=False)
    assert network.streams.used * WINDOW / ROUND_TRIP >= 0.9 * network.rate
