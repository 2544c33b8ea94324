"""The progress of a run by the lines of its ledger: rounds, leases, settings.

`LedgerReplay` applies one line after another and refuses a line that cannot follow, so
a ledger that was read to its end proves that its run followed the rules.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pcp.errors import StateMismatch
from pcp.training.data.lease_pool import Range, merged, overlap
from pcp.training.storage.ledger_history import History

Leases = dict[str, list[Range]]
SEED, WEIGHTS, CHECKPOINT = "(seed)", "(initial weights)", "(checkpoint)"
"""Sources of a joined worker's state other than a worker."""


@dataclass
class Progress:
    """The result of replaying a ledger."""

    begin: dict[str, Any] = field(default_factory=dict)
    committed: int = 0
    """The last committed round; 0 before the first."""
    digest: str | None = None
    """The digest of the state after the committed round."""
    epoch: int = 0
    """The highest epoch of a group."""
    members: list[str] = field(default_factory=list)
    """The members of that group, each with a part in the state that it prepares."""
    history: History = field(default_factory=History)
    """The committed rounds."""
    spent: list[Range] = field(default_factory=list)
    """All consumed ranges, joined."""
    outstanding: Leases = field(default_factory=dict)
    """Leases of the round under way; in asynchronous rounds, of all learners."""
    late: Leases = field(default_factory=dict)
    """Leases of rounds that went on without their holders."""
    asynchronous: bool = False
    """Whether leases are given out one by one, not with a round."""
    tokens: int = 0
    paused: bool = False
    """Whether an operator has paused the run."""
    usual_step_seconds: float | None = None
    """The usual seconds of an inner step of the slowest member."""
    steps: int | None = None
    """The inner steps a round, where an operator changed them."""
    settings: dict[str, Any] | None = None
    """The experiment of the shepherd that started last."""
    quarantined: dict[str, str] = field(default_factory=dict)
    """Workers in quarantine, and why."""
    paused_because: str | None = None
    """Why the run paused by itself; None: it did not."""
    scores: dict[int, float] = field(default_factory=dict)
    """The held-out losses of committed rounds, by round."""
    ended: bool = False
    term: int = 0
    """The term of the shepherd that leads, where others stand by."""

    def taken(self) -> list[Range]:
        """Every range that is consumed or leased."""
        leases = (*self.outstanding.values(), *self.late.values())
        return merged([*self.spent, *(r for ranges in leases for r in ranges)])


def _leases(raw: Mapping[str, Sequence[Sequence[int]]]) -> Leases:
    return {name: [(a, b) for a, b in ranges] for name, ranges in raw.items()}


class LedgerReplay:
    """Applies records one after another, refusing what cannot follow.

    With `kept` the history has this many rounds in memory, at most twice as many.
    """

    def __init__(self, kept: int | None = None) -> None:
        self.progress = Progress()
        self.kept = kept

    def apply(self, record: Mapping[str, Any]) -> None:
        """Apply one record."""
        handler = _HANDLERS.get(record.get("kind"))
        if handler is None:
            raise StateMismatch(f"ledger: unknown record {record.get('kind')!r}")
        handler(self, record)

    def _on_begin(self, record: Mapping[str, Any]) -> None:
        self.progress.begin = {k: v for k, v in record.items() if k != "n"}

    def _on_leader(self, record: Mapping[str, Any]) -> None:
        if record["term"] <= self.progress.term:
            raise StateMismatch(
                f"ledger: term {record['term']} after term {self.progress.term}"
            )
        self.progress.term = record["term"]

    def _on_round(self, record: Mapping[str, Any]) -> None:
        p = self.progress
        granted = _leases(record["leases"])
        # One group may make many rounds; a second attempt needs another group.
        oldest = p.epoch + bool(p.outstanding)
        if record["round"] != p.committed + 1 or record["epoch"] < oldest:
            raise StateMismatch(
                f"ledger: round {record['round']} of epoch {record['epoch']} after "
                f"round {p.committed} of epoch {p.epoch}"
            )
        for name, ranges in granted.items():
            known = p.outstanding.get(name) or p.late.get(name, ranges)
            if known != ranges or (p.asynchronous and name not in p.outstanding):
                raise StateMismatch(f"ledger: the lease of {name} changed in its round")
        self._hold({**p.outstanding, **granted})
        p.epoch, p.members = record["epoch"], list(granted)

    def _hold(self, leases: Leases) -> None:
        """Set the outstanding leases; `StateMismatch` for a sample given out twice."""
        p = self.progress
        late = {name: held for name, held in p.late.items() if name not in leases}
        everyones = (*leases.values(), *late.values())
        held = sorted(r for ranges in everyones for r in ranges)
        twice = overlap(held, p.spent) or next(
            ((b[0], min(a[1], b[1])) for a, b in pairwise(held) if b[0] < a[1]), None
        )
        if twice:
            raise StateMismatch(f"ledger: samples {twice} were given out twice")
        p.outstanding, p.late = leases, late

    def _on_lease(self, record: Mapping[str, Any]) -> None:
        p, name = self.progress, record["worker"]
        if name in p.outstanding:
            raise StateMismatch(f"ledger: {name} was given a second lease")
        p.asynchronous = True
        self._hold({**p.outstanding, **_leases({name: record["lease"]})})

    def _on_late(self, record: Mapping[str, Any]) -> None:
        p, name = self.progress, record["worker"]
        if name not in p.outstanding:
            raise StateMismatch(f"ledger: {name} is late with no lease")
        p.late[name] = p.outstanding.pop(name)

    def _on_returned(self, record: Mapping[str, Any]) -> None:
        p, name = self.progress, record["worker"]
        if p.outstanding.pop(name, None) is None and p.late.pop(name, None) is None:
            raise StateMismatch(f"ledger: {record['worker']} returned no lease of its")

    def _on_commit(self, record: Mapping[str, Any]) -> None:
        p = self.progress
        consumed = _leases(record["consumed"])
        if record["round"] != p.committed + 1:
            raise StateMismatch(
                f"ledger: commit of round {record['round']} after {p.committed}"
            )
        due = {n: held for n, held in p.outstanding.items() if n in consumed}
        if consumed != (due if p.asynchronous else p.outstanding):
            lost = sorted(set(p.outstanding) ^ set(consumed)) or sorted(consumed)
            raise StateMismatch(
                f"ledger: round {record['round']} consumed other samples than were "
                f"given out (workers {', '.join(lost)})"
            )
        everyones = [r for held in consumed.values() for r in held]
        p.history.add(record["round"], everyones, record["digest"])
        if self.kept is not None:
            p.history.shorten(self.kept)
        p.spent = merged([*p.spent, *everyones])
        p.outstanding = {n: h for n, h in p.outstanding.items() if n not in consumed}
        p.committed, p.digest = record["round"], record["digest"]
        p.tokens += record.get("tokens", 0)
        key = "usual_step_seconds"
        p.usual_step_seconds = record.get(key, p.usual_step_seconds)

    def _on_checkpoint(self, record: Mapping[str, Any]) -> None:
        pass  # the line is for readers: the folder decides

    def _on_score(self, record: Mapping[str, Any]) -> None:
        p, round_ = self.progress, record["round"]
        if not 0 < round_ <= p.committed or round_ in p.scores:
            raise StateMismatch(
                f"ledger: a score of round {round_} after round {p.committed}"
            )
        p.scores[round_] = float(record["loss"])

    def _on_started(self, record: Mapping[str, Any]) -> None:
        self.progress.settings = record["experiment"]

    def _on_joined(self, record: Mapping[str, Any]) -> None:
        pass  # for a replay of the run

    def _on_rewind(self, record: Mapping[str, Any]) -> None:
        p, to = self.progress, record["to"]
        held = p.outstanding and not p.asynchronous
        if not 0 <= to <= p.committed or held or p.late:
            raise StateMismatch(f"ledger: a rewind to round {to} from {p.committed}")
        p.history.back_to(to)
        p.spent = merged(p.history.used())
        p.committed, p.digest = to, p.history.digest(to)
        p.scores = {r: loss for r, loss in p.scores.items() if r <= to}

    def _on_recut(self, record: Mapping[str, Any]) -> None:
        p, round_ = self.progress, record["round"]
        if round_ != p.committed or not round_ or p.outstanding:
            raise StateMismatch(
                f"ledger: round {round_} in other parts, and the last is {p.committed}"
            )
        p.history.recut(round_, record["digest"])
        p.digest = record["digest"]

    def _on_order(self, record: Mapping[str, Any]) -> None:
        if record["action"] in ("pause", "resume"):
            self.progress.paused = record["action"] == "pause"
            self.progress.paused_because = record.get("reason")
        self.progress.steps = record.get("steps", self.progress.steps)

    def _on_quarantined(self, record: Mapping[str, Any]) -> None:
        self.progress.quarantined[record["worker"]] = record["reason"]

    def _on_end(self, record: Mapping[str, Any]) -> None:
        self.progress.ended = True


_HANDLERS: Mapping[Any, Callable[[LedgerReplay, Mapping[str, Any]], None]] = {
    name.removeprefix("_on_"): handler
    for name, handler in vars(LedgerReplay).items()
    if name.startswith("_on_")
}
"""The handler of each kind of record."""


def replayed(records: Iterable[Mapping[str, Any]]) -> LedgerReplay:
    """The progress after all of a ledger's lines."""
    replay = LedgerReplay()
    for record in records:
        replay.apply(record)
    return replay
