"""Groups of a drawn schedule's workers: all members exchange, or none."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from helpers.simulation.run_checks import SEED_DIGEST, Violation, next_digest
from helpers.simulation.scheduled_inner_exchanges import InnerExchanges
from helpers.simulation.scheduled_islands import fetched

from pcp.training.wire.messages import (
    AwaitedRanks,
    RoundStart,
)

if TYPE_CHECKING:
    from helpers.simulation.run_schedules import Schedule
    from helpers.simulation.scheduled_workers import Node

GIVEN_UP_SECONDS = (4.0, 4.0, 600.0)
"""Who waits for so long for a member of its group gives up; one is drawn."""
FOUND_SECONDS = 30.0
"""Nobody waits for longer for one that hangs where it is with others."""
ALONE_SECONDS = 75.0
"""Nor for so many that those who wait are not most of the others."""


class Group:
    """The members of one attempt: they meet, and exchange, all or none.

    A group goes on from round to round while its epoch stays; one that broke does not.
    """

    def __init__(
        self, schedule: "Schedule", order: RoundStart, coordinate: int
    ) -> None:
        self._schedule, self._members = schedule, order.members
        self._place = order.epoch, coordinate
        self._islands = [
            island
            for island, shape in enumerate(order.shapes)
            for _ in range(schedule.sizes[shape])
        ] or [*range(len(order.members))]
        """By member, the number of its island: of unlike ones all ranks are here."""
        self._orders: dict[str, tuple[Node, RoundStart]] = {}
        self._computed: set[str] = set()
        self._broken = self._place in schedule.broken
        self.inner_exchanges = InnerExchanges(schedule, self)
        schedule.after(schedule.given_up_seconds, self._given_up)

    @property
    def broken(self) -> bool:
        """Whether its members exchange nothing any more."""
        return self._broken

    @property
    def arrived(self) -> list[tuple["Node", RoundStart]]:
        """The members that are there, with their orders, by rank."""
        orders = self._orders
        return [orders[address] for address in self._members if address in orders]

    @property
    def size(self) -> int:
        """How many members there are to be."""
        return len(self._members)

    def awaits(self, node: "Node") -> AwaitedRanks | None:
        """Which members a member waits for; None: it is in no call with them."""
        there = self._orders.keys()
        if len(there) == self.size and not self.inner_exchanges.waits(node):
            there = self._computed
        elif len(there) == self.size:
            there = self.inner_exchanges.there
        if node.address not in there or self._broken:
            return None
        waits = self._schedule.now - node.at[1]
        late = [rank for rank, a in enumerate(self._members) if a not in there]
        lacks = sorted({self._islands[rank] for rank in late})
        if waits > FOUND_SECONDS:
            self._check_waits(node, waits)
        return AwaitedRanks(ranks=lacks, seconds=waits)

    def _check_waits(self, node: "Node", waits: float) -> None:
        members = [self._schedule.nodes[address] for address in self._members]
        hung = [member for member in members if member.hangs_with_others]
        most = 2 * (self.size - len(hung)) > self.size - 1
        if hung and waits > (FOUND_SECONDS if most else ALONE_SECONDS):
            raise Violation(f"{node.name} waits for {hung[0].name}, which hangs")

    def arrives(self, node: "Node", order: RoundStart) -> None:
        """A member is there; when all are, they have one state."""
        if self._broken:
            node.fails(order, "the group is gone")
            return
        self._orders[node.address] = (node, order)
        if len(self._orders) == len(self._members):
            self._schedule.after(0.01, self._formed)

    def _formed(self) -> None:
        if self._broken:
            return
        first, order = self._orders[self._members[0]]
        state = self._state(first, order)
        if state is None:
            self._breaks("rank 0 cannot fetch the newest state")
            return
        for node, own in list(self._orders.values()):
            if not self._broken and not node.hung:
                node.take(own, self._own(state, first, node))
        if self._schedule.plan.exchanges_inside and not self._broken:
            self.inner_exchanges.begin(state[1])

    def _state(self, first: "Node", order: RoundStart) -> tuple[int, str] | None:
        """Of the round before: rank 0's, or what it fetches."""
        before, held = order.round - 1, first.held
        checks = self._schedule.checks
        cells = checks.parts.get(before)
        wanted = checks.part(cells, first.place) if cells else None
        if order.source is None and held != (before, wanted):
            raise Violation(f"rank 0 of round {order.round} holds {held}")
        if held is not None and held[0] == before and order.digest in (None, held[1]):
            return held
        source = order.source
        state = fetched(self._schedule, first, source) if source else None
        return state if state == (before, order.digest or SEED_DIGEST) else None

    def _own(
        self, state: tuple[int, str], first: "Node", node: "Node"
    ) -> tuple[int, str]:
        """The state of which the first member has this part, in another's part."""
        if first.place == node.place:
            return state
        checks = self._schedule.checks
        return state[0], checks.part(checks.cells(first.place, state[1]), node.place)

    def computed(self, node: "Node") -> None:
        """A member has made its inner steps; all exchange when all have."""
        self._computed.add(node.address)
        if len(self._computed) == len(self._members):
            self._schedule.after(0.02, self._exchanged)

    def _exchanged(self) -> None:
        if self._broken:
            return
        self._broken = True
        members = [self._orders[address] for address in self._members]
        first = members[0][0]
        before, checks = first.held, self._schedule.checks
        assert before is not None
        for node, order in members:
            work = node.work
            mine = self._own(before, first, node)
            if not order.carried and (work is None or work[2] != mine[1]):
                raise Violation(f"{node.name} began from another state: {work}")
        self.inner_exchanges.check()
        leases = {
            island: order.lease
            for island, (_, order) in zip(self._islands, members, strict=True)
        }
        cells = checks.cells(first.place, before[1])
        after = [next_digest(cell, leases.values()) for cell in cells]
        checks.made(after)
        torn = self._torn(members)
        for node, order in members:
            digest = None if node in torn else checks.part(after, node.place)
            node.after(
                self._schedule.latency() / 4,
                partial(self._outcome, node, order, digest),
            )

    def _torn(self, members: Sequence[tuple["Node", RoundStart]]) -> list["Node"]:
        """Of unlike islands: who has a ring that failed while another did not."""
        schedule = self._schedule
        if len(schedule.sizes) == 1 or schedule.random.random() < 0.9:
            return []
        cells = max(schedule.sizes)
        ring = schedule.random.randrange(cells)
        return [
            node
            for node, _ in members
            if ring * schedule.sizes[node.shape] // cells == node.coordinate
        ]

    def _outcome(self, node: "Node", order: RoundStart, digest: str | None) -> None:
        """A member has this digest, or a ring of it is gone."""
        if node.group is self and digest is None:
            node.fails(order, "a ring is gone")
        elif node.group is self and digest is not None:
            self._schedule.happens("reduced", node)
            if node.alive:
                node.propose(order, digest)

    def without(self, gone: "Node") -> None:
        """A member died, or does something else."""
        if not self._broken and gone.address in self._members:
            at = self._islands[self._members.index(gone.address)]
            self._breaks(f"{gone.name} is gone", at)

    def _given_up(self) -> None:
        waits = [said for node, _ in self.arrived if (said := self.awaits(node))]
        if not self._broken and not any(said.ranks for said in waits):
            # All are at their steps, where one may wait for its own island.
            self._schedule.after(self._schedule.given_up_seconds, self._given_up)
        elif not self._broken:
            pairs = zip(self._islands, self._members, strict=True)
            late = {island for island, a in pairs if a not in self._orders}
            self._breaks("it takes too long", *sorted(late))

    def _breaks(self, why: str, *lost: int) -> None:
        self._broken = True
        self._schedule.broken.add(self._place)
        for node, order in self._orders.values():
            if node.group is self and node.alive:
                node.fails(order, why, *lost)
