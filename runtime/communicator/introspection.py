"""Observation of a communicator: metrics, health, stragglers, traces."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pcp.errors import Timeout, UsageError
from pcp.runtime.collectives.metrics import Metric
from pcp.runtime.collectives.tracing import Events, Recorder, Traced, write_trace
from pcp.runtime.communicator.collective_methods import Collectives
from pcp.runtime.group.group import Group
from pcp.runtime.group.peer_health import PeerHealth, Straggler, stragglers

_ECHOES = 8
_ECHO_SECONDS = 10.0
_ASK_AGAIN_SECONDS = 2.0


class ObservedMember(Protocol):
    """The communicator that is observed."""

    timeout: float
    _group: Group

    def all_gather(self, array: NDArray, *, tag: str = "", timeout: Any = None) -> Any:
        """All members' arrays, joined."""
        ...

    def gather(self, array: NDArray, root: int = 0, *, tag: str = "") -> Any:
        """At the root all members' rows."""
        ...


class Observation:
    """Observation of a communicator, whose methods of these names call these."""

    def __init__(self, comm: ObservedMember) -> None:
        self._comm = comm

    def metrics(self) -> dict[str, float]:
        """This member's counters and gauges, by Prometheus' names and labels.

        Of histograms their counts and sums; `prometheus_exporter` serves the
        buckets, too.
        An elastic member's counters go on through all its groups.
        """
        return self._comm._group.telemetry.flat()

    def collect(self) -> list[Metric]:
        """The metrics with histograms, for an `Exporter`."""
        return self._comm._group.telemetry.metrics()

    def health(self) -> list[PeerHealth]:
        """The health of each peer, in rank order; `health_text` makes a table of it."""
        peers = self._comm._group.health.peers.copy()
        return [replace(peer) for _, peer in sorted(peers.items())]

    def stragglers(self, *, timeout: float | None = None) -> list[Straggler]:
        """The lateness of members in operations, the latest first. All members call it.

        A moving average of how long after the others each member opens operations;
        all members get the same list.
        """
        late = np.full((1, self._comm._group.world_size), np.nan)
        for peer in self.health():
            if peer.lateness.count:
                late[0, peer.rank] = peer.lateness.value
        every = self._comm.all_gather(late, tag="stragglers", timeout=timeout)
        return stragglers(every)

    # Traces.

    @contextmanager
    def trace(self, path: str | Path, *others: Traced) -> Iterator[Recorder]:
        """Trace the block to a file that Perfetto opens (`tracing`).

        All members enter and leave it; rank 0 writes the file, with a track for
        each member. `others` are traced with it: programs, `MeshGroups`,
        communicators of some of the members. A member that leaves it by an error
        writes its own spans, to `path` with its rank in the name.
        """
        recorder = Recorder()
        things: list[Any] = [self._comm, *others]
        before = [thing._recorder for thing in things]
        for index, thing in enumerate(things):
            row = f"group {index}" if isinstance(thing, Collectives) else ""
            things[index]._recorder = recorder.of(row) if index and row else recorder
        try:
            try:
                yield recorder
            finally:  # the gathering itself is not traced
                for thing, earlier in zip(things, before, strict=True):
                    thing._recorder = earlier
            every = self._gathered(recorder.events)
        except BaseException:
            rank = self._comm._group.rank
            own = Path(path).with_suffix(f".rank{rank}{Path(path).suffix}")
            write_trace(own, [(f"rank {rank}", recorder.events, 0.0)])
            raise
        if every is not None:
            write_trace(path, every)

    def _gathered(self, events: Events) -> list[tuple[str, Events, float]] | None:
        """All members' events and clock offsets, on rank 0; None elsewhere."""
        clock = 0.0 if self._comm._group.rank == 0 else self.clock_offset(0)
        clocks = self._comm.all_gather(np.array([clock]), tag="trace")
        raw = np.frombuffer(events.to_bytes(), np.uint8)
        sizes = self._comm.all_gather(np.array([raw.size]), tag="trace")
        whole = self._comm.gather(raw, 0, tag="trace")
        if whole is None:
            return None
        cuts = np.split(whole, np.cumsum(sizes)[:-1])
        return [
            (f"rank {rank}", Events.from_bytes(cut.tobytes()), float(clocks[rank]))
            for rank, cut in enumerate(cuts)
        ]

    def clock_offset(self, rank: int) -> float:
        """A member's monotonic clock minus this one's (s), by some echoes now."""
        return self._echoed(rank, _ECHOES).clock_offset

    def round_trip(self, rank: int, echoes: int = _ECHOES) -> float:
        """Seconds to a member and back: the quickest of some echoes now."""
        return self._echoed(rank, echoes).least_round_trip

    def _echoed(self, rank: int, echoes: int) -> PeerHealth:
        peer = self._comm._group.health.peers.get(rank)
        if peer is None:
            raise UsageError(f"rank {rank} is no peer of rank {self._comm._group.rank}")
        for _ in range(echoes):
            self._echo(rank, peer)
        return peer

    def _echo(self, rank: int, peer: PeerHealth) -> None:
        group, seen = self._comm._group, peer.round_trip.count
        until = time.monotonic() + min(self._comm.timeout, _ECHO_SECONDS)

        def ask() -> None:
            link = group.links.get(rank)
            if link is not None:
                group.health.ask(rank, link)

        again = 0.0
        while peer.round_trip.count == seen:
            now = time.monotonic()
            if group.fault is not None:
                raise type(group.fault)(str(group.fault))
            if now > until:
                raise Timeout(f"rank {rank} did not answer an echo")
            if now > again:
                again = now + _ASK_AGAIN_SECONDS
                group.loop.call(ask)
            time.sleep(0.0005)
