"""Drawn schedules in which a process dies exactly between two ranks of an island."""

from helpers.simulation.run_checks import Violation
from helpers.simulation.run_schedules import Schedule
from helpers.simulation.scheduled_workers import Node

POINTS = ("reduced", "prepared", "committed")
"""What one rank of the island has done, and another has not."""


class Struck(Schedule):
    """At a point of one of the first rounds a rank dies, or the shepherd."""

    def __init__(self, seed: int, point: str, *ranks: int) -> None:
        super().__init__(seed, "together", *ranks)
        self._point = point
        self._later = self.random.choice((0, 0, 1, 2, 3))
        self.struck: str | None = None
        """Who died."""

    def happens(self, what: str, node: Node) -> None:
        """Strike where only this rank of its island has come so far."""
        others = [
            other
            for other in self.nodes.values()
            if other.alive and other.island == node.island and other is not node
        ]
        if what != self._point or self.struck or not others:
            return
        if any(self._as_far(other, node) for other in others):
            return
        if self._later:
            self._later -= 1
            return
        if self.random.random() < 0.2:
            self.struck = "the shepherd"
            self.kill_shepherd()
            return
        victim = self.random.choice([node, *others, *others])
        self.struck = victim.name
        victim.die()
        again = victim.name if self.random.random() < 0.5 else None
        self.after(0.1 + self.random.random(), lambda: self.start_worker(again))

    def _as_far(self, other: Node, node: Node) -> bool:
        if self._point == "committed":
            return other.held is None or other.held[0] >= (node.held or (0, ""))[0]
        return other.prepared is not None


def first_torn(seeds: range, point: str, *ranks: int) -> tuple[str, int]:
    """What the first schedule that goes wrong says; how many processes were struck."""
    struck = 0
    for seed in seeds:
        run = Struck(seed, point, *(ranks or (2,)))
        try:
            run.go()
        except Violation as wrong:
            return f"seed {seed}, {point}: {wrong}", struck
        struck += run.struck is not None
    return "", struck
