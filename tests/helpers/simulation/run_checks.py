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
from functools import cache
from typing import Any

from pcp.errors import StateMismatch
from pcp.training.coordinator import effects as do
from pcp.training.coordinator.training_run import TrainingRun
from pcp.training.data.lease_pool import Range, size
from pcp.training.storage import island_shapes
from pcp.training.storage.island_parts import joined_digest
from pcp.training.storage.ledger_state import LedgerReplay
from pcp.training.wire.messages import (
    Commit,
    LeaseGrant,
    Prepared,
    RoundStart,
)

Place = tuple[int, int]
"""The shape of an island, and a coordinate in it."""
SEED_DIGEST = hashlib.sha256(b"seed").hexdigest()


@cache
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

    def __init__(self, experiment: Any, sizes: Sequence[int] = (1,)) -> None:
        self._experiment, self._sizes = experiment, sizes
        self.records: list[dict[str, Any]] = []
        """The ledger, as it is on the disk."""
        cells = [seed_part(at) for at in range(max(sizes))]
        self.parts: dict[int, list[str]] = {0: cells}
        """Digests of the states of the run's history, by coordinate; among islands of
        unlike shape by the coordinates of the largest."""
        self.places = [(s, at) for s, size in enumerate(sizes) for at in range(size)]
        """All shapes of islands, with the coordinates of their ranks."""
        self.ever: dict[int, set[tuple[Place, str]]] = {}
        """Of all states that ever were, with who holds them."""
        self._cells: dict[tuple[Place, str], list[str]] = {}
        self.knows(0, cells)
        self._disk = LedgerReplay()
        self._votes: dict[tuple[int, int], dict[str, dict[Place, str]]] = {}
        self._kept = 0
        self._attempt: Mapping[str, Any] = {}
        self.of: dict[type, Callable[[Any], None]] = {
            do.Append: self._appended,
            do.Send: self._sent,
            do.Keep: self._keep,
            do.Fail: self._failed,
        }
        """What is checked of an effect, as it is carried out, by its type."""
        self._told: dict[type, Callable[[Any], None]] = {
            Commit: self._commit_sent,
            RoundStart: self._order_sent,
            LeaseGrant: self._lease_sent,
        }

    @property
    def digests(self) -> dict[int, str | None]:
        """Of the states of the run's history."""
        return {round_: self._joined(parts) for round_, parts in self.parts.items()}

    def _joined(self, digests: Sequence[str | None]) -> str | None:
        """Of a state, from its parts' digests, as `Island` has it."""
        unlike = len(self._sizes) > 1
        return island_shapes.joined(digests) if unlike else joined_digest(digests)

    def part(self, cells: Sequence[str], place: Place) -> str:
        """The digest of a rank's part of a state."""
        if len(self._sizes) == 1:
            return cells[place[1]]
        size = self._sizes[place[0]]
        owned = [c for at, c in enumerate(cells) if at * size // len(cells) == place[1]]
        found = island_shapes.joined(owned)
        assert found is not None
        return found

    def dealt(self, cells: Sequence[str], shapes: Sequence[int]) -> list[str]:
        """The digests of the parts of a state on the ranks of islands."""
        places = [(s, at) for s in shapes for at in range(self._sizes[s])]
        return [self.part(cells, place) for place in places]

    def cells(self, place: Place, digest: str) -> list[str]:
        """The whole state of which a rank has this part."""
        return self._cells[place, digest]

    def made(self, cells: Sequence[str]) -> None:
        """Somebody has this state: see `cells`."""
        for place in self.places:
            self._cells[place, self.part(cells, place)] = [*cells]

    def knows(self, round_: int, cells: Sequence[str]) -> None:
        """This was the state of a round."""
        self.made(cells)
        ever = self.ever.setdefault(round_, set())
        ever.update((place, self.part(cells, place)) for place in self.places)

    def voted(self, name: str, place: Place, message: Prepared) -> None:
        """A rank of the member with this name has prepared its part of a state."""
        at = (message.round, message.epoch)
        mine = self._votes.setdefault(at, {}).setdefault(name, {})
        mine[place] = message.digest

    def holds(self, name: str, place: Place, held: tuple[int, str]) -> None:
        """A rank has its part of a state, which it takes for a committed one."""
        if (place, held[1]) not in self.ever.get(held[0], ()):
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
        votes = {name: self._vote(voted.get(name, {})) for name in attempt["members"]}
        missing = [name for name, vote in votes.items() if vote != digest]
        if missing or set(attempt["members"]) != set(record["consumed"]):
            raise Violation(f"round {round_} was committed without {missing}")
        leases = list(record["consumed"].values())
        parts = [next_digest(before, leases) for before in self.parts[round_ - 1]]
        if digest != self._joined(parts):
            raise Violation(f"round {round_} is not what its leases make")
        if self._kept != round_:
            raise Violation(f"round {round_} counts, and is not kept")
        self.parts[round_] = parts
        self.knows(round_, parts)

    def _vote(self, voted: Mapping[Place, str]) -> str | None:
        """Of the state that all ranks of a member have prepared; None without one."""
        shapes = {shape for shape, _ in voted}
        if len(shapes) != 1:
            return None
        shape = shapes.pop()
        ranks = range(self._sizes[shape])
        return self._joined([voted.get((shape, at)) for at in ranks])

    def _sent(self, effect: do.Send) -> None:
        check = self._told.get(type(effect.message))
        if check is not None:
            check(effect.message)

    def _commit_sent(self, message: Commit) -> None:
        cells = self.parts.get(message.round)
        known = [self.part(cells, place) for place in self.places] if cells else ()
        if message.digest not in known:
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
