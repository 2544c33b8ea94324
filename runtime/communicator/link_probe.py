"""Link probes: latency and rate of edges, a few tenths of a second each at most.

Disjoint pairs are measured at the same time: one round of a tournament
after the other (the circle method), both directions of a pair in turn. The payload
doubles until two estimates in a row agree, or it has taken long enough. The
rate is that of the bytes *added* by the last doubling, so that the fixed cost of a
transfer (its OPEN frame, the answer) falls out.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

TAG = 1 << 40
"""The tag of probes; programs have smaller ones."""
_ECHOES = 4


@dataclass(frozen=True)
class Effort:
    """Limits of the measurement of one edge."""

    first: int = 256 << 10
    most: int = 32 << 20
    """Bytes."""
    long_enough: float = 0.1
    """A single transfer of so many seconds is enough."""
    seconds: float = 0.5
    """Seconds of all transfers together."""
    agreement: float = 0.15


def tournament(size: int) -> Iterator[list[tuple[int, int]]]:
    """Rounds of disjoint pairs in which each pair of members comes once."""
    circle = list(range(size + size % 2))  # the partner of an extra one pauses
    half = len(circle) // 2
    for _ in range(len(circle) - 1):
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        yield [(min(pair), max(pair)) for pair in pairs if max(pair) < size]
        circle = [circle[0], circle[-1], *circle[1:-1]]


def measure(
    comm: Any, missing: NDArray, effort: Effort | None = None
) -> dict[int, tuple[float, float]]:
    """(latency, bandwidth) of this member's edges among the missing ones.

    All members call it with the same `missing[from, to]`.
    """
    effort, found = effort or Effort(), {}
    for pairs in tournament(comm.world_size):
        for pair in pairs:
            if comm.rank not in pair:
                continue
            for source, target in (pair, pair[::-1]):
                if not missing[source, target]:
                    continue
                if comm.rank == source:
                    found[target] = _send_side(comm, target, effort)
                else:
                    _receive_side(comm, source)
    return found


def _send_side(comm: Any, target: int, effort: Effort) -> tuple[float, float]:
    comm.recv(np.zeros(1, np.uint8), target, TAG)  # its other pairs are done
    latency = comm.round_trip(target, _ECHOES) / 2
    until = time.monotonic() + effort.seconds
    size, before, rates = effort.first, (0, 0.0), [np.inf]
    while True:
        # The quicker of two: load only makes a transfer longer.
        took = min(_transfer(comm, target, size) for _ in range(2))
        more = took - before[1]
        # A larger transfer that took less time says nothing of the rate.
        rates.append((size - before[0]) / more if more > 0 else size / took)
        agree = abs(rates[-1] / rates[-2] - 1) <= effort.agreement
        late = took >= effort.long_enough or time.monotonic() > until
        if agree or late or 2 * size > effort.most:
            break
        size, before = 2 * size, (size, took)
    _say(comm, target, 0)
    return latency, float(rates[-1])


def _transfer(comm: Any, target: int, size: int) -> float:
    """Seconds from the first byte until the receiver's answer to the last one."""
    payload = np.zeros(size, np.uint8)
    _say(comm, target, size)
    begin = time.monotonic()
    comm.send(payload, target, TAG)
    comm.recv(np.zeros(1, np.uint8), target, TAG)
    return time.monotonic() - begin


def _receive_side(comm: Any, source: int) -> None:
    comm.send(np.zeros(1, np.uint8), source, TAG)
    size = np.zeros(1, np.int64)
    while int(comm.recv(size, source, TAG)[0]):
        comm.recv(np.empty(int(size[0]), np.uint8), source, TAG)
        comm.send(np.zeros(1, np.uint8), source, TAG)


def _say(comm: Any, target: int, size: int) -> None:
    comm.send(np.array([size], np.int64), target, TAG)
