"""Health of peers: round trips, clocks, bytes a second, lateness.

With every heartbeat a member asks each peer for an echo, with its own time in it; the
answer has the peer's time, too. The peer read its clock about half way between (D.
Mills, RFC 5905): the quickest of the last echoes gives the best estimate of the
difference of the clocks.

The lateness of a peer is measured by operations: how long after this member it opens
them. `stragglers` puts all members' measurements together.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pcp.runtime.collectives.metrics import Average, Metric, gauge, table
from pcp.runtime.collectives.timing import Timing
from pcp.runtime.transport.frame import Frame, Header, Kind
from pcp.wire import FAR_SECONDS

if TYPE_CHECKING:
    from pcp.runtime.transport.link import Link

ASK, ANSWER = 1, 2
"""Steps of a PING: a question, and its answer; other PINGs are heartbeats only."""
_BEST_OF = 32
_ANSWERS = 64
"""Echoes that a peer gets between two heartbeats at most."""
_PATIENCE = 40


@dataclass(slots=True)
class PeerHealth:
    """The measurements of one peer. Seconds and bytes a second."""

    rank: int
    round_trip: Average = field(default_factory=Average)
    lateness: Average = field(default_factory=Average)
    """How long after this member it opens operations; 0 when it was first."""
    sent: Average = field(default_factory=Average)
    received: Average = field(default_factory=Average)
    silent: float = 0.0
    """How long its link has been silent."""
    echoes: "deque[tuple[float, float]]" = field(
        default_factory=lambda: deque(maxlen=_BEST_OF)
    )
    """Round trips, and the peer's clock minus this member's."""
    asked: int = 0
    waiting: bool = field(default=False, init=False)
    answered: int = field(default=0, init=False)
    """Echoes since the last heartbeat."""
    beaten: tuple[float, int, int] | None = field(default=None, init=False)
    """The time of the last heartbeat, and the byte counts of its link then."""

    @property
    def least_round_trip(self) -> float:
        """The quickest of the last echoes; 0 before the first."""
        return min(self.echoes, default=(0.0, 0.0))[0]

    @property
    def clock_offset(self) -> float:
        """Its clock minus this member's, within half of `least_round_trip`."""
        return min(self.echoes, default=(0.0, 0.0))[1]


class Health:
    """The measurements of all peers of a group. In the loop's thread."""

    def __init__(self) -> None:
        self.peers: dict[int, PeerHealth] = {}
        self.trips: dict[int, float] = {}
        """The round trip (s) to each peer when its link was made."""
        self.far: set[int] = set()
        """The peers beyond `FAR_SECONDS`."""

    def admit(self, rank: int, round_trip: float = 0.0) -> None:
        """Add a peer; it is asked for echoes from the next heartbeat on."""
        self.peers[rank] = PeerHealth(rank, asked=time.monotonic_ns())
        self.trips[rank] = round_trip
        if round_trip >= FAR_SECONDS:
            self.far.add(rank)

    def ask(self, rank: int, link: "Link") -> None:
        """Ask a peer for an echo."""
        peer, now = self.peers[rank], time.monotonic_ns()
        peer.asked, peer.waiting = now, True
        link.send(Frame(Kind.PING, step=ASK, offset=now))

    def beat(self, rank: int, link: "Link", interval: float, *, ask: bool) -> None:
        """At a heartbeat: measure the bytes since the last one; `ask` for an echo."""
        peer, now = self.peers[rank], time.monotonic()
        # An echo behind much data is late; one may get lost.
        pause = _PATIENCE * interval if peer.waiting else interval
        if ask and now - peer.asked / 1e9 >= pause:
            self.ask(rank, link)
        counts = (now, link.bytes_sent, link.bytes_received)
        if peer.beaten is not None and now > peer.beaten[0]:
            took = now - peer.beaten[0]
            peer.sent.add((counts[1] - peer.beaten[1]) / took)
            peer.received.add((counts[2] - peer.beaten[2]) / took)
        peer.beaten = counts
        peer.answered = 0
        peer.silent = now - link.last_heard

    def heard(self, rank: int, link: "Link", header: Header) -> None:
        """Handle a PING: answer it, or measure by the answer."""
        peer = self.peers[rank]
        if header.step == ASK:
            if peer.answered < _ANSWERS:
                peer.answered += 1
                mine = time.monotonic_ns()
                link.send(Frame(Kind.PING, step=ANSWER, tag=mine, offset=header.offset))
        elif header.step == ANSWER and header.offset == peer.asked:
            now_ns = time.monotonic_ns()
            trip = now_ns - header.offset
            middle = header.offset + trip // 2
            peer.asked, peer.waiting = now_ns, False
            peer.round_trip.add(trip / 1e9)
            peer.echoes.append((trip / 1e9, (header.tag - middle) / 1e9))

    def waited(self, timing: Timing) -> None:
        """Measure the lateness of the peers whose OPEN an operation waited for."""
        if timing.opened:
            for rank, when in timing.joined.items():
                self.peers[rank].lateness.add(max(0.0, when - timing.posted))


def group_metrics(
    health: Health, links: "Mapping[int, Link]", facts: Mapping[str, float]
) -> Iterator[Metric]:
    """The metrics of a group and its peers; `facts` are gauges of `_FACTS`."""
    peers = [peer for _, peer in sorted(health.peers.copy().items())]
    for name, value in facts.items():
        yield gauge(f"pcp_{name}", _FACTS[name], value)
    traffic = {}
    for rank, link in list(links.items()):
        traffic[rank, "sent"] = link.bytes_sent
        traffic[rank, "received"] = link.bytes_received
    about = "bytes over the connection to a peer, headers included"
    yield table(
        "pcp_link_bytes_total", "counter", about, ("peer", "direction"), traffic
    )
    for name, about, read in _OF_PEERS:
        rows = {peer.rank: read(peer) for peer in peers}
        yield table(name, "gauge", about, ("peer",), rows)


_FACTS = {
    "epoch": "the epoch of the group",
    "rank": "this member's rank",
    "world_size": "members of the group",
    "operations_in_flight": "operations under way",
}
_OF_PEERS = (
    (
        "pcp_round_trip_seconds",
        "of heartbeats, a moving average",
        lambda peer: peer.round_trip.value,
    ),
    (
        "pcp_round_trip_least_seconds",
        "the quickest of the last heartbeats",
        lambda peer: peer.least_round_trip,
    ),
    (
        "pcp_clock_offset_seconds",
        "the peer's monotonic clock minus ours",
        lambda peer: peer.clock_offset,
    ),
    (
        "pcp_peer_lateness_seconds",
        "how long after us a peer joins operations, a moving average",
        lambda peer: peer.lateness.value,
    ),
    (
        "pcp_sent_bytes_per_second",
        "to a peer, a moving average",
        lambda peer: peer.sent.value,
    ),
    (
        "pcp_received_bytes_per_second",
        "from a peer, a moving average",
        lambda peer: peer.received.value,
    ),
)


@dataclass(frozen=True)
class Straggler:
    """The lateness of a member, by the median of the others' measurements."""

    rank: int
    lateness: float
    """Seconds."""
    share: float
    """Its part of the lateness of all members; 1 when it alone is late."""


def stragglers(lateness: NDArray) -> list[Straggler]:
    """The members, the latest first; row r of `lateness` is measured by member r.

    It is nan where a member has not measured another: among many each measures few.
    """
    columns = (column[~np.isnan(column)] for column in lateness.T)
    seen = [float(np.median(column)) if column.size else 0.0 for column in columns]
    total = sum(seen)
    found = [
        Straggler(rank, late, late / total if total else 0.0)
        for rank, late in enumerate(seen)
    ]
    return sorted(found, key=lambda s: -s.lateness)


def straggler_text(found: Sequence[Straggler]) -> str:
    """A line for each member."""
    lines = [f"{'rank':>4}{'late ms':>10}{'share':>8}"]
    lines += [
        f"{s.rank:>4}{1e3 * s.lateness:>10.2f}{100 * s.share:>7.0f}%" for s in found
    ]
    return "\n".join(lines)


def health_text(peers: Sequence[PeerHealth]) -> str:
    """A line for each peer."""
    heads = ("peer", "rtt ms", "+-", "least", "late ms", "sent MB/s", "got MB/s")
    lines = ["".join(f"{head:>10}" for head in heads)]
    for peer in peers:
        cells = (
            f"{peer.rank}",
            f"{1e3 * peer.round_trip.value:.3f}",
            f"{1e3 * peer.round_trip.deviation:.3f}",
            f"{1e3 * peer.least_round_trip:.3f}",
            f"{1e3 * peer.lateness.value:.2f}",
            f"{peer.sent.value / 1e6:.1f}",
            f"{peer.received.value / 1e6:.1f}",
        )
        lines.append("".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines)
