"""What must hold of a run, whatever happens: checked as its effects are carried out.

ledger      every line follows from those before: no sample is given out or used
            twice, none is lost (a replay of its own refuses anything else)
commit      every member of the newest attempt had prepared this one state, in it
state       the state is what the leases of its rounds make, in their order
order       nobody hears of a lease or a commit before the ledger has it
kept        a round's figures are kept before the round counts
end         all rounds are there; what is free, held and used is all there is
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pcp.errors import StateMismatch
from pcp.training.coordinator import effects as do
from pcp.training.coordinator.training_run import TrainingRun
from pcp.training.data.lease_pool import Range, size
from pcp.training.storage.island_parts import joined_digest
from pcp.training.storage.ledger_state import LedgerReplay
from pcp.training.wire.messages import (
    Commit,
    LeaseGrant,
    Prepared,
    RoundStart,
)

SEED_DIGEST = hashlib.sha256(b"seed").hexdigest()


def seed_part(coordinate: int) -> str:
    """Of a rank's part of the state before the first round."""
    text = f"seed {coordinate}" if coordinate else "seed"
    return hashlib.sha256(text.encode()).hexdigest()


class Violation(AssertionError):
    """Something that must hold does not."""


def next_digest(before: str, leases: Iterable[Sequence[Range]]) -> str:
    """Of the state that a round of members with these leases makes."""
    parts = repr(sorted([*map(tuple, lease)] for lease in leases))
    return hashlib.sha256(f"{before}{parts}".encode()).hexdigest()


class Checks:
    """Of one run, through all its shepherds."""

    def __init__(self, experiment: Any, ranks: int = 1) -> None:
        self._experiment, self._ranks = experiment, ranks
        self.records: list[dict[str, Any]] = []
        """The ledger, as it is on the disk."""
        self.parts: dict[int, list[str]] = {0: [seed_part(at) for at in range(ranks)]}
        """Digests of the states of the run's history, by coordinate."""
        self.ever: dict[int, set[tuple[int, str]]] = {0: set(enumerate(self.parts[0]))}
        """Of all states that ever were, with their coordinates."""
        self._disk = LedgerReplay()
        self._votes: dict[tuple[int, int], dict[tuple[str, int], str]] = {}
        self._kept = 0
        self._attempt: Mapping[str, Any] = {}
        self._seen = {
            do.Append: self._appended,
            do.Send: self._sent,
            do.Keep: self._keep,
            do.Fail: self._failed,
        }
        self._told: dict[type, Callable[[Any], None]] = {
            Commit: self._commit_sent,
            RoundStart: self._order_sent,
            LeaseGrant: self._lease_sent,
        }

    def seen(self, effect: do.Effect) -> None:
        """An effect is carried out."""
        check = self._seen.get(type(effect))
        if check is not None:
            check(effect)

    @property
    def digests(self) -> dict[int, str | None]:
        """Of the states of the run's history."""
        return {round_: joined_digest(parts) for round_, parts in self.parts.items()}

    def voted(self, name: str, coordinate: int, message: Prepared) -> None:
        """A rank of the member with this name has prepared its part of a state."""
        at = (message.round, message.epoch)
        self._votes.setdefault(at, {})[name, coordinate] = message.digest

    def holds(self, name: str, coordinate: int, held: tuple[int, str]) -> None:
        """A rank has its part of a state, which it takes for a committed one."""
        if (coordinate, held[1]) not in self.ever.get(held[0], ()):
            raise Violation(f"{name} holds a state of round {held[0]} that never was")

    def ended(self, run: TrainingRun) -> None:
        """The run says that it is complete."""
        outcome, rounds, progress = run.outcome, run.rounds, run.state.progress
        assert outcome is not None
        assert rounds is not None
        if outcome.rounds != self._experiment.outer_loop_steps:
            raise Violation(f"it ended after {outcome.rounds} rounds")
        if progress.committed != max(self.parts) or not self._disk.progress.ended:
            raise Violation("the ledger ends with another round")
        pool = rounds.pool
        if pool.available + size(progress.taken()) != pool.total:
            raise Violation("samples are lost")

    # Effects.

    def _appended(self, effect: do.Append) -> None:
        record = {"n": len(self.records), "kind": effect.kind, **effect.fields}
        try:
            self._disk.apply(record)
        except StateMismatch as error:
            raise Violation(str(error)) from error
        self.records.append(record)
        if effect.kind == "round":
            self._attempt = record
        elif effect.kind == "commit":
            self._committed(record)
        elif effect.kind == "rewind":
            self.parts = {r: d for r, d in self.parts.items() if r <= record["to"]}

    def _committed(self, record: Mapping[str, Any]) -> None:
        round_, epoch, digest = (record[key] for key in ("round", "epoch", "digest"))
        voted = self._votes.get((round_, epoch), {})
        attempt = self._attempt
        if (attempt.get("round"), attempt.get("epoch")) != (round_, epoch):
            raise Violation(f"round {round_} of epoch {epoch} was not the newest")
        votes = {
            name: joined_digest([voted.get((name, at)) for at in range(self._ranks)])
            for name in attempt["members"]
        }
        missing = [name for name, vote in votes.items() if vote != digest]
        if missing or set(attempt["members"]) != set(record["consumed"]):
            raise Violation(f"round {round_} was committed without {missing}")
        leases = list(record["consumed"].values())
        parts = [next_digest(before, leases) for before in self.parts[round_ - 1]]
        if digest != joined_digest(parts):
            raise Violation(f"round {round_} is not what its leases make")
        if self._kept != round_:
            raise Violation(f"round {round_} counts, and is not kept")
        self.parts[round_] = parts
        self.ever.setdefault(round_, set()).update(enumerate(parts))

    def _sent(self, effect: do.Send) -> None:
        check = self._told.get(type(effect.message))
        if check is not None:
            check(effect.message)

    def _commit_sent(self, message: Commit) -> None:
        if message.digest not in self.parts.get(message.round, ()):
            raise Violation(f"a commit of {message.round} is not in the ledger")

    def _order_sent(self, message: RoundStart) -> None:
        known = (self._attempt.get("round"), self._attempt.get("epoch"))
        if known != (message.round, message.epoch):
            raise Violation(f"an order of {message.round} is not in the ledger")

    def _lease_sent(self, message: LeaseGrant) -> None:
        if list(message.lease) not in list(self._disk.progress.outstanding.values()):
            raise Violation(f"a lease {message.lease} is not in the ledger")

    def _keep(self, effect: do.Keep) -> None:
        self._kept = effect.record.round

    def _failed(self, effect: do.Fail) -> None:
        raise Violation(f"the run failed: {effect.error}") from effect.error
