"""Islands of a drawn schedule, of one shape or more: ranks step together or fail."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from helpers.simulation.run_checks import Violation, seed_part
from helpers.simulation.scheduled_connections import Wire

from pcp.training.config.island_options import IslandOptions
from pcp.training.wire.message import Message
from pcp.training.wire.messages import (
    Commit,
    GroupFailed,
    LeaseGrant,
    Restore,
    RoundStart,
    Validated,
)

if TYPE_CHECKING:
    from helpers.simulation.run_schedules import Schedule
    from helpers.simulation.scheduled_workers import Node


Meeting = tuple["Node", Callable[[], None], Callable[[], bool], Callable[[int], None]]
"""A rank, what it does when all are there, whether it waits, and how it fails."""


class StepsInside:
    """Inner steps of one round, or its validation, in one inner epoch of an island."""

    def __init__(self, schedule: "Schedule", order: RoundStart) -> None:
        self._schedule, self._island = schedule, list(order.island)
        self._there: dict[str, Meeting] = {}

    def meets(
        self,
        node: "Node",
        act: Callable[[], None],
        waits: Callable[[], bool],
        fails: Callable[[int], None],
    ) -> None:
        """A rank is at their end; all go on when all are there and wait.

        One that has begun something else meanwhile has left their group.
        """
        self._there[node.address] = (node, act, waits, fails)
        if len(self._there) < len(self._island):
            self.look()
            return
        left = [at for at, a in enumerate(self._island) if not self._there[a][2]()]
        if left:
            self._fail(left[0])
            return
        ranks = [self._there[address][0] for address in self._island]
        held = {rank.held[0] if rank.held else None for rank in ranks}
        if len(held) > 1:
            raise Violation(f"ranks step together from the rounds {held}")
        if [rank.coordinate for rank in ranks] != [*range(len(ranks))]:
            raise Violation(f"{[rank.name for rank in ranks]} are in no order")
        for _, each, waits, _ in self._there.values():
            self._schedule.after(0.0, partial(_if, waits, each))

    def look(self) -> None:
        """Who waits for a rank that is no more finds out."""
        nodes = self._schedule.nodes
        gone = [at for at, a in enumerate(self._island) if not nodes[a].alive]
        if gone and self._there:
            self._fail(gone[0])

    def _fail(self, lost: int) -> None:
        for _, _, waits, fails in self._there.values():
            if waits():
                fails(lost)
        self._there.clear()


def _if(waits: Callable[[], bool], act: Callable[[], None]) -> None:
    if waits():
        act()


def together(
    schedule: "Schedule",
    order: RoundStart | None,
    what: str,
    *meeting: Any,
) -> None:
    """What ranks of an order's island do together; a whole worker does it alone.

    `meeting` is as in `StepsInside.meets`.
    """
    if order is None or not order.island:
        meeting[1]()
        return
    at = (what, order.inner_epoch, *order.island, order.round)
    met = schedule.steps_inside
    met.setdefault(at, StepsInside(schedule, order)).meets(*meeting)


class Evaluation:
    """Of held-out batches behind a commit, by a rank with the others of its island.

    Orders wait until it is over. Who welcomes the rank anew ends the group in which it
    evaluates.
    """

    def __init__(self, node: "Node", commit: Commit, order: RoundStart | None) -> None:
        self._node, self._commit, self._order = node, commit, order
        self._island = order is not None and bool(order.island)
        self._waits = self._gone = self._over = False
        self.next: RoundStart | LeaseGrant | None = None
        """The newest order that came meanwhile."""

    def ends(self, order: RoundStart | LeaseGrant | None = None) -> None:
        """A message came: the group may be over by it."""
        self.next = order or self.next
        self._gone |= order is None and self._island
        if self._gone and self._waits:
            self._fails(0)

    def call_off(self) -> None:
        """The rank begins something else."""
        self._over = True

    def meets(self, schedule: "Schedule") -> None:
        """It has made its part: all have the loss when all have."""
        self._waits, node = True, self._node
        if self._gone:
            self._fails(0)
            return
        act, waits = self._done, lambda: self._waits and not self._over
        together(schedule, self._order, "validates", node, act, waits, self._fails)

    def _done(self) -> None:
        said = Validated(round=self._commit.round, loss_sum=1.0, batches=1)
        self._says(said)

    def _fails(self, lost: int) -> None:
        at = {"round": self._commit.round, "epoch": self._commit.epoch}
        self._says(GroupFailed(**at, reason="the ranks are gone", inside=True))

    def _says(self, said: Message) -> None:
        if self._over or not self._node.alive or self._node.hung:
            return
        self._over = True
        self._node.evaluated(said, self.next)


def drawn_islands(
    draw: random.Random, sizes: Sequence[int], workers: int
) -> dict[str, Any]:
    """The key of islands of unlike shape: one of each, and others that are drawn."""
    if len(sizes) == 1:
        return {}
    meshes = [f"tp={size}" for size in sizes]
    more = [draw.choice(meshes) for _ in range(workers - len(meshes))]
    return {"islands": [IslandOptions(mesh=mesh) for mesh in (*meshes, *more)]}


def devices(experiment: Any, sizes: Sequence[int]) -> int:
    """How many processes a run begins with."""
    unlike = bool(experiment.islands)
    return experiment.devices(0) if unlike else experiment.workers * sizes[0]


def restored(
    schedule: "Schedule", node: "Node", message: Restore
) -> tuple[int, str] | None:
    """The state that a `Restore` is for: from the seed, a source, or many ranks."""
    checks = schedule.checks
    if message.ranks:
        return _fetched_from_all(schedule, node, message)
    if message.source:
        return fetched(schedule, node, message.source)
    cells = [seed_part(at) for at in range(len(checks.parts[0]))]
    return 0, checks.part(cells, node.place)


def fetched(schedule: "Schedule", node: "Node", source: str) -> tuple[int, str] | None:
    """The state that somebody serves."""
    if source.startswith(Wire.here):
        served = schedule.served
        return served and (served[0], schedule.checks.part(served[1], node.place))
    at = schedule.nodes[source]
    if at.place != node.place:
        raise Violation(f"{node.name} fetches another's part from {at.name}")
    return at.held if at.alive and not at.frozen else None


def _fetched_from_all(
    schedule: "Schedule", node: "Node", message: Restore
) -> tuple[int, str] | None:
    """A rank's part of what the ranks of an island of another shape hold together."""
    ranks = [schedule.nodes[address] for address in message.ranks]
    there = [(message.shape, at) for at in range(schedule.sizes[message.shape])]
    if [rank.place for rank in ranks] != there:
        raise Violation(f"{node.name} fetches from {[n.name for n in ranks]}")
    held = [rank.held for rank in ranks if rank.alive and not rank.frozen]
    known = [state for state in held if state is not None]
    if len(known) < len(ranks) or len({round_ for round_, _ in known}) > 1:
        return None
    pairs = zip(ranks, known, strict=True)
    whole = [schedule.checks.cells(rank.place, state[1]) for rank, state in pairs]
    if any(cells != whole[0] for cells in whole):
        raise Violation(f"{node.name} joins parts of unlike states")
    return known[0][0], schedule.checks.part(whole[0], node.place)
