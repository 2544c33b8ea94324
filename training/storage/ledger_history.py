"""The samples that each committed round consumed, and the digest of its state.

A run goes back to a round that a worker or a checkpoint still has, which is rarely far.
To limit memory in a run of weeks, a shepherd has only the newest rounds in memory one
by one, and of older rounds the samples that they consumed together. An older round is
read from the ledger's file when it is needed.
"""

from dataclasses import dataclass, field

from pcp.errors import StateMismatch
from pcp.training.data.lease_pool import Range, merged


@dataclass(frozen=True)
class CommittedRound:
    """A committed round."""

    consumed: list[Range]
    digest: str
    """The digest of the state after it."""
    before: tuple[str, ...] = ()
    """The digests of the same state in earlier parts."""


@dataclass
class History:
    """The committed rounds of a ledger, from the first to the last."""

    rounds: dict[int, CommittedRound] = field(default_factory=dict)
    """The rounds after `since`, by number."""
    since: int = 0
    """Rounds up to this one are only in the sum."""
    before: list[Range] = field(default_factory=list)
    """The samples that the rounds up to `since` consumed, joined."""

    def add(self, round_: int, consumed: list[Range], digest: str) -> None:
        """Add a committed round."""
        self.rounds[round_] = CommittedRound(merged(consumed), digest)

    def recut(self, round_: int, digest: str) -> None:
        """Note that the state after a round is in other parts from here on."""
        made = self.rounds[round_]
        before = (*made.before, made.digest)
        self.rounds[round_] = CommittedRound(made.consumed, digest, before)

    def used(self) -> list[Range]:
        """Every consumed range, of each round in turn."""
        newer = (r for made in self.rounds.values() for r in made.consumed)
        return [*self.before, *newer]

    def digest(self, round_: int) -> str | None:
        """The digest of the state after a round; None where it is not in memory."""
        made = self.rounds.get(round_)
        return None if made is None else made.digest

    def digests(self, round_: int) -> tuple[str, ...]:
        """The digests of the state after a round, in all its parts so far."""
        made = self.rounds.get(round_)
        return () if made is None else (*made.before, made.digest)

    def reaches(self, round_: int) -> bool:
        """Whether this round and all later ones are in memory."""
        return self.since == 0 or round_ > self.since

    def back_to(self, round_: int) -> None:
        """Drop the rounds after this one."""
        if round_ < self.since:
            raise StateMismatch(
                f"ledger: back to round {round_}, and the rounds up to {self.since} "
                "are not known one by one"
            )
        self.rounds = {r: made for r, made in self.rounds.items() if r <= round_}

    def shorten(self, kept: int) -> None:
        """Keep `kept` rounds one by one, once there are twice as many."""
        if len(self.rounds) <= 2 * kept:
            return
        self.since = max(self.rounds) - kept
        old = [made for r, made in self.rounds.items() if r <= self.since]
        self.before = merged(
            [*self.before, *(r for made in old for r in made.consumed)]
        )
        self.rounds = {r: made for r, made in self.rounds.items() if r > self.since}
