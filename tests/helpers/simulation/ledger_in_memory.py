"""A ledger copy in memory, for electors under drawn schedules."""

from collections.abc import Sequence
from hashlib import sha256

from pcp.training.storage.ledger import FIRST


class LedgerInMemory:
    """Lines, each of which begins with its term; what is cut off must not count."""

    def __init__(self) -> None:
        self.held: list[str] = []

    @property
    def count(self) -> int:
        return len(self.held)

    def term(self, count: int) -> int:
        return int(self.held[count - 1].split()[0]) if count else 0

    def hash(self, count: int) -> str:
        lines = "\n".join(self.held[:count])
        return sha256(lines.encode()).hexdigest() if count else FIRST

    def lines(self, start: int, most: int) -> list[str]:
        return self.held[start : start + most]

    def take(self, start: int, lines: Sequence[str]) -> None:
        assert start <= len(self.held), "a gap"
        for at, line in enumerate(lines, start):
            if self.held[at : at + 1] != [line]:
                self.held[at:] = [line]

    def cut(self, count: int) -> None:
        del self.held[count:]
