"""Chapter 10: train across two homes.

`pcp guide check 10` runs your class.
"""


class Leases:
    """Samples 0 to n - 1, each given out and used exactly once, whoever dies."""

    def __init__(self, n: int) -> None:
        self.free = list(range(n))
        self.held: dict[str, list[int]] = {}
        self.used: list[int] = []

    def take(self, worker: str, count: int) -> list[int]:
        """Give a worker the next `count` free samples, or as many as there are."""
        # (answer
        lease, self.free = self.free[:count], self.free[count:]
        self.held[worker] = self.held.get(worker, []) + lease
        return lease
        # answer)

    def commit(self, workers: set[str]) -> None:
        """The round counts: what these workers held is used up."""
        # (answer
        for worker in sorted(workers):
            self.used += self.held.pop(worker, [])
        # answer)

    def lose(self, worker: str) -> None:
        """A worker died before the commit: what it held is free again, in order."""
        # (answer
        self.free = sorted(self.free + self.held.pop(worker, []))
        # answer)
