"""Islands of a drawn schedule, of one shape or more: ranks step together or fail."""

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from helpers.simulation.run_checks import Violation, seed_part
from helpers.simulation.scheduled_connections import Wire

from pcp.training.config.island_options import IslandOptions
from pcp.training.wire.messages import (
    Restore,
    RoundStart,
)

if TYPE_CHECKING:
    from helpers.simulation.run_schedules import Schedule
    from helpers.simulation.scheduled_workers import Node


class StepsInside:
    """Inner steps of one round, in one inner epoch of an island."""

    def __init__(self, schedule: "Schedule", order: RoundStart) -> None:
        self._schedule, self._island = schedule, list(order.island)
        self._there: dict[str, tuple[Node, Callable[[], None], Callable[[], bool]]] = {}
        self._dead: int | None = None

    def meets(
        self, node: "Node", act: Callable[[], None], waits: Callable[[], bool]
    ) -> None:
        """A rank is at their end; all go on when all are there and wait.

        One that has begun something else meanwhile has left their group.
        """
        self._there[node.address] = (node, act, waits)
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
        for _, each, _ in self._there.values():
            self._schedule.after(0.0, each)

    def look(self) -> None:
        """Who waits for a rank that is no more finds out."""
        nodes = self._schedule.nodes
        gone = [at for at, a in enumerate(self._island) if not nodes[a].alive]
        if gone and self._there:
            self._fail(gone[0])

    def _fail(self, lost: int) -> None:
        for node, _, waits in self._there.values():
            if waits():
                node.fails_inside(lost)
        self._there.clear()


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
