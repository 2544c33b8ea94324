"""The samples that each committed round consumed, and the digest of its state.

A run goes back to what a worker or a checkpoint still has, which is hardly ever far.
So that one that trains for weeks does not grow, a shepherd has only the newest rounds
in memory, one by one; of those before it knows what they consumed together. One of them
is read from the ledger's file when it is needed.
"""

from dataclasses import dataclass, field

from pcp.errors import StateMismatch
from pcp.training.data.lease_pool import Range, merged


@dataclass(frozen=True)
class CommittedRound:
    """A committed round."""

    consumed: list[Range]
    digest: str
    """Of the state after it."""
    before: tuple[str, ...] = ()
    """Of the same state as it was cut before."""


@dataclass
class History:
    """The committed rounds of a ledger, from the first to the last."""

    rounds: dict[int, CommittedRound] = field(default_factory=dict)
    """Those after `since`, by number."""
    since: int = 0
    """Up to this round there is only a sum."""
    before: list[Range] = field(default_factory=list)
    """The samples that the rounds up to `since` consumed, joined."""

    def add(self, round_: int, consumed: list[Range], digest: str) -> None:
        """A round was committed."""
        self.rounds[round_] = CommittedRound(merged(consumed), digest)

    def recut(self, round_: int, digest: str) -> None:
        """The state after a round is held in other parts from here on."""
        made = self.rounds[round_]
        before = (*made.before, made.digest)
        self.rounds[round_] = CommittedRound(made.consumed, digest, before)

    def used(self) -> list[Range]:
        """Every range that was consumed, a round's once for each round."""
        newer = (r for made in self.rounds.values() for r in made.consumed)
        return [*self.before, *newer]

    def digest(self, round_: int) -> str | None:
        """Of the state after a round; None where that is not known here."""
        made = self.rounds.get(round_)
        return None if made is None else made.digest

    def digests(self, round_: int) -> tuple[str, ...]:
        """Of the state after a round, in all the parts in which it was held."""
        made = self.rounds.get(round_)
        return () if made is None else (*made.before, made.digest)

    def reaches(self, round_: int) -> bool:
        """Whether the state after a round is known here, and so what came behind it."""
        return self.since == 0 or round_ > self.since

    def back_to(self, round_: int) -> None:
        """The rounds after this one never were."""
        if round_ < self.since:
            raise StateMismatch(
                f"ledger: back to round {round_}, and the rounds up to {self.since} "
                "are not known one by one"
            )
        self.rounds = {r: made for r, made in self.rounds.items() if r <= round_}

    def shorten(self, kept: int) -> None:
        """Know at most twice as many rounds one by one; then only so many."""
        if len(self.rounds) <= 2 * kept:
            return
        self.since = max(self.rounds) - kept
        old = [made for r, made in self.rounds.items() if r <= self.since]
        self.before = merged(
            [*self.before, *(r for made in old for r in made.consumed)]
        )
        self.rounds = {r: made for r, made in self.rounds.items() if r > self.since}
