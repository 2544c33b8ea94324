"""The ring's order: measured, chosen, adopted by all members, written down.

    topology = comm.optimize_topology()      # all members, between two steps
    topology.text(), topology.order

A new group (`update_membership`) begins with the order of ranks; edges between
members that are still there are not measured again.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pcp import strict_json
from pcp.errors import ProtocolError, UsageError
from pcp.runtime.collectives.member_context import MemberContext
from pcp.runtime.communicator.link_probe import Effort, measure
from pcp.runtime.group.group import Group
from pcp.runtime.topology.ring_order import (
    EXACT,
    Order,
    best_order,
    improved,
    normal,
    worth,
)
from pcp.runtime.topology.topology import (
    REFERENCE_BYTES,
    Profile,
    Topology,
    distance_of,
    edge_costs,
    ring_seconds,
)
from pcp.wire import Distance

_TAG = "topology"
_PAUSE = 0.005


@dataclass(frozen=True)
class RingRecord:
    """A ring that was set, and its epoch, for replays."""

    epoch: int
    order: Order


class RingSearch:
    """The search for a better ring, in a background thread."""

    def __init__(self, costs: NDArray, order: Order, seconds: float) -> None:
        self.costs = costs
        self.order = order
        self._until = time.monotonic() + seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="pcp-ring-order", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop; `order` is the best ring found."""
        self._stopped.set()
        self._thread.join(10)

    def _run(self) -> None:
        seed = 1
        while time.monotonic() < self._until and not self._stopped.wait(_PAUSE):
            self.order = improved(self.costs, self.order, rounds=1, seed=seed)
            seed += 1


@dataclass
class RingState:
    """The measured edges and the rings of a communicator."""

    edges: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    """Edges of this member: (from, to) by name -> (latency, bandwidth)."""
    history: list[RingRecord] = field(default_factory=list)
    search: RingSearch | None = None

    def close(self) -> None:
        """Stop the search in the background."""
        if self.search is not None:
            self.search.close()
            self.search = None


class RingMember(Protocol):
    """The communicator whose ring it is."""

    _group: Group
    _context: MemberContext
    _ring_state: RingState

    @property
    def distance(self) -> Distance | None:
        """The distance by which reductions choose their schedule."""
        ...

    @distance.setter
    def distance(self, distance: Distance | None) -> None: ...

    def all_gather(self, array: NDArray, *, tag: str = "") -> NDArray:
        """All members' arrays, joined."""
        ...

    def broadcast(self, array: NDArray, root: int = 0, *, tag: str = "") -> NDArray:
        """The root's array."""
        ...


class RingChoice:
    """The choice of a communicator's ring; its methods of these names call these."""

    def __init__(self, comm: RingMember) -> None:
        self._comm = comm
        self._known = comm._ring_state

    def set_ring_order(self, order: Sequence[int]) -> None:
        """Take this ring from the next operation on. All members call it alike.

        UsageError unless it is an order of all ranks. Where members have different
        rings the next large operation raises on all.
        """
        group = self._comm._group
        if sorted(order) != list(range(group.world_size)):
            raise UsageError(
                f"a ring of {group.world_size} is an order of the ranks 0 to "
                f"{group.world_size - 1}, not {list(order)}"
            )
        ring = normal([int(rank) for rank in order])
        comm = self._comm
        comm._context = replace(comm._context, order=ring)
        self._known.history.append(RingRecord(group.epoch, ring))

    def optimize_topology(
        self,
        *,
        threshold: float = 0.1,
        nbytes: int = REFERENCE_BYTES,
        remeasure: bool = False,
        effort: Effort | None = None,
        background: float = 30.0,
    ) -> Topology:
        """Measure the unknown edges, and take a ring that suits all edges.

        All members call it alike, between two steps, as `update_membership`. The
        ring changes when a reduction of `nbytes` should get faster by more than
        `threshold` (0.1: a tenth). In worlds of more than `ring_order.EXACT`
        members rank 0 goes on looking for `background` seconds, and the next call
        takes the best ring found. All members get the same topology. Members that are
        far from each other reduce by halving and doubling, while that is faster than
        any ring (`reduction.declared`).
        """
        latency, bandwidth = self._edges(remeasure, effort)
        self._comm.distance = distance_of(latency, bandwidth)
        costs = edge_costs(latency, bandwidth, nbytes)
        order, gain = self._decided(costs, threshold, background)
        if order != self._comm._context.ring:
            self.set_ring_order(order)
        return Topology(
            epoch=self._comm._group.epoch,
            profiles=self._profiles(),
            latency=latency,
            bandwidth=bandwidth,
            order=self._comm._context.ring,
            gain=gain,
        )

    # Inside.

    def _names(self) -> list[str]:
        """Members' names by rank, which stay the same in the next epoch."""
        names: Sequence[str] | None = getattr(self._comm, "names", None)
        size = self._comm._group.world_size
        return list(names or (f"rank {rank}" for rank in range(size)))

    def _edges(self, remeasure: bool, effort: Effort | None) -> tuple[NDArray, NDArray]:
        """(latency, bandwidth) of all edges; unknown ones are measured."""
        names, rank, known = self._names(), self._comm._group.rank, self._known.edges
        if remeasure:
            known.clear()
        found = self._shared_edges(names)
        missing = np.asarray(np.isnan(found).any(axis=2))
        np.fill_diagonal(missing, False)
        if missing.any():
            for target, edge in measure(self._comm, missing, effort).items():
                known[names[rank], names[target]] = edge
            found = self._shared_edges(names)
        for table in (found[:, :, 0], found[:, :, 1]):
            np.fill_diagonal(table, 0.0)
        return found[:, :, 0], found[:, :, 1]

    def _shared_edges(self, names: Sequence[str]) -> NDArray:
        """[from, to, (latency, bandwidth)] as all members know it; NaN: unknown."""
        own = np.full((1, len(names), 2), np.nan)
        for target, name in enumerate(names):
            edge = self._known.edges.get((names[self._comm._group.rank], name))
            if edge is not None:
                own[0, target] = edge
        return self._comm.all_gather(own, tag=_TAG)

    def _decided(
        self, costs: NDArray, threshold: float, background: float
    ) -> tuple[Order, float]:
        """Rank 0's choice, and the gain over the present ring."""
        choice = np.array([*self._comm._context.ring, 1.0])
        if self._comm._group.rank == 0:
            order, now = self._best(costs, background), self._comm._context.ring
            later = ring_seconds(costs, order)
            gain = ring_seconds(costs, now) / later if later > 0 else 1.0
            if gain > 1 + threshold:
                choice = np.array([*order, gain])
        chosen = self._comm.broadcast(choice, 0, tag=_TAG)
        return tuple(int(rank) for rank in chosen[:-1]), float(chosen[-1])

    def _best(self, costs: NDArray, background: float) -> Order:
        ring_state, size = self._known, len(costs)
        before = ring_state.search
        ring_state.close()
        if before is not None and np.array_equal(before.costs, costs):
            order = before.order
        else:
            order = best_order(costs) if size > 1 else (0,)
            now = self._comm._context.ring
            order = order if worth(costs, order) < worth(costs, now) else now
        if size > EXACT and background > 0:
            ring_state.search = RingSearch(costs, order, background)
        return order

    def _profiles(self) -> tuple[Profile, ...]:
        name = self._names()[self._comm._group.rank]
        text = strict_json.dumps(vars(Profile.own(name))).encode()
        raw = np.frombuffer(text, np.uint8)
        sizes = self._comm.all_gather(np.array([raw.size]), tag=_TAG)
        whole = self._comm.all_gather(raw, tag=_TAG)
        cuts = np.split(whole, np.cumsum(sizes)[:-1])
        return tuple(_profile(cut.tobytes()) for cut in cuts)


def _profile(raw: bytes) -> Profile:
    try:
        facts: Mapping[str, Any] = strict_json.parse(raw)
        return Profile(**facts)
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"a member's profile is none: {error!r}") from None
