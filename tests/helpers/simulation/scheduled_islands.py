"""The inner group of an island in a drawn schedule: its ranks step together or fail."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from helpers.simulation.run_checks import Violation

from pcp.training.wire.messages import (
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
