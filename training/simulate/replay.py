"""The replay of a run from its ledger: the same rounds, in one process, bit by bit.

The ledger has the workers of each round, in the order of ranks, and their samples; the
source of each worker's state when it joined; and the digest of the result. These, the
seed, the data and the program decide the rest. So each worker of the record gets a
replay worker with its own endpoint on this machine, which carries out the same orders
with the same code, and the digests are compared round by round:

    joined      take the state of that round, from where the record says
    commit      make the round, with the last attempt's members, leases and epoch
    late, lease a member makes its steps from the state it holds, for a later round
    rewind      go back: workers that join next take the state of a checkpoint

A worker may have fetched a state while the next round was already under way: it fetches
the state of the round that its line names, and not of the line's place.

A replay does not call `TrainingRun.step`, whose input is events and their times (ticks,
messages, silence): a ledger has none of them, but the decisions. The code after a
decision is shared: `LedgerReplay` applies the ledger's lines, orders are
`Attempt.orders`, and a late member's weight is `discount`.

A ledger lacks one fact: which inner exchanges were complete when a member died in a
round that goes on after them (`streaming_diloco`). Such a round is made with its last
members alone, and the report of a difference names that cause.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcp.errors import StateMismatch, UsageError
from pcp.runtime import Endpoint
from pcp.training.config.experiment import (
    Experiment,
)
from pcp.training.config.experiment_file import (
    parse,
)
from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.stale_results import discount
from pcp.training.data.corpus import Corpus
from pcp.training.data.lease_pool import quantum
from pcp.training.simulate.replay_island import Load, ReplayIsland, Snapshots, make
from pcp.training.storage import first_values, ledger, nonfinite, safetensors_io
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.checkpoint_resharding import rejoining, reshard
from pcp.training.storage.ledger_state import CHECKPOINT, SEED, WEIGHTS
from pcp.training.storage.snapshots import assembled, snapshot_of
from pcp.training.trainer.interface import Trainer
from pcp.training.wire.messages import (
    RoundStart,
)


@dataclass(frozen=True)
class ReplayedRound:
    """One round, as recorded and as replayed."""

    round: int
    epoch: int
    workers: int
    recorded: str
    found: str
    loss_recorded: float
    loss_found: float
    cut: bool = False
    """Whether it lost a member between two exchanges, which no ledger has."""

    @property
    def same(self) -> bool:
        """Whether the digests agree."""
        return self.recorded == self.found

    def difference(self) -> str:
        """The difference, and a hint at its cause."""
        if self.cut:
            where = (
                "a member died between two exchanges of this round, and which of them "
                "were complete is not in the ledger: this one cannot be made again"
            )
        elif nonfinite.same(self.loss_recorded, self.loss_found):
            where = "the inner steps' losses agree: look at the outer step"
        else:
            where = (
                f"the inner steps' loss was {self.loss_recorded!r}, is "
                f"{self.loss_found!r}: another program, data or processor"
            )
        return (
            f"round {self.round} differs: digest {self.recorded[:12]} is recorded, "
            f"{self.found[:12]} came out; {where}"
        )


class Replay:
    """Makes the rounds of a ledger's `records` again; to be closed.

    `load` loads a program; `data_path` is the path of the data in place of the
    experiment's. `run` is the run's folder, with the values that came with the model
    (`pcp.training.storage.first_values`).
    """

    def __init__(
        self,
        records: Sequence[Mapping[str, Any]],
        load: Load,
        data_path: str | None = None,
        run: Path | None = None,
    ) -> None:
        self._records, self._load, self._data_path = records, load, data_path
        self._run = run
        self._state = ledger.LedgerReplay()
        self._later = _events(records)
        self._workers: dict[str, ReplayIsland] = {}
        self._bundles: dict[str, tuple[str, str]] = {}
        """The target and the bundle's digest of each replay worker."""
        self._saved: dict[int, Checkpoint] = {}
        self._attempts: list[Mapping[str, Any]] = []
        """The attempt under way."""
        self._late: dict[str, int] = {}
        """The workers with late steps, and the round of these steps."""
        self._endpoint: Endpoint | None = None
        """Hands out a state that no replay worker holds."""
        self._experiment: Experiment | None = None
        self._corpus: Corpus | None = None
        self.notes: list[str] = []
        """Facts that differ from the record, and may make a round differ."""

    def rounds(self) -> Iterator[ReplayedRound]:
        """Each committed round in turn; ends after the first that differs."""
        for position, record in enumerate(self._records):
            self._state.apply(record)
            if record["kind"] == "started":
                self._settle(record)
            elif record["kind"] == "round":
                self._attempts.append(record)
            elif record["kind"] == "late":
                self._late[record["worker"]] = record["round"]
            elif record["kind"] == "returned":
                self._late.pop(record["worker"], None)
            elif record["kind"] == "rewind":
                self._attempts.clear()
            elif record["kind"] == "commit":
                made = self._make(record)
                yield made
                if not made.same:
                    return
            for event in self._later.get(position, ()):
                self._save(event) if event["kind"] == "checkpoint" else self._join(
                    event
                )

    def close(self) -> None:
        """Close all replay workers."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        if self._endpoint is not None:
            self._endpoint.close()

    @property
    def experiment(self) -> Experiment:
        """The settings in force."""
        if self._experiment is None:
            raise StateMismatch(
                "this ledger does not say under which settings the run was made: it is "
                "of an older pcp, and cannot be made again"
            )
        return self._experiment

    def _settle(self, record: Mapping[str, Any]) -> None:
        """A shepherd started, perhaps with other settings: programs may change."""
        source = f"line {record['n'] + 1} of the ledger"
        self._experiment = parse(record["experiment"], source=source)
        if self._experiment.islands:
            raise UsageError(
                f"{source}: islands of unlike shape train from here on, and their "
                "rounds are not made again; `pcp show` has what the ledger says of them"
            )
        for name, worker in list(self._workers.items()):
            target, before = self._bundles[name]
            trainers, digest = self._loaded(target)
            same_parts = trainers[0].parts.noted == worker.trainer.parts.noted
            if digest == before or not same_parts:
                for trainer in trainers:
                    trainer.close()
            if not same_parts:
                worker.close()
                del self._workers[name]  # its island has another mesh from here on
            elif digest != before:
                worker.replace(trainers, self._open(trainers[0]))
                self._bundles[name] = (target, digest)

    def _loaded(self, target: str) -> tuple[list[Trainer], str]:
        """A trainer for each rank of a member, and the digest of their bundle."""
        size = self.experiment.ranks
        ranks = [(at,) for at in range(size)] if size > 1 else [()]
        found = [self._load(self.experiment, target, *at) for at in ranks]
        for trainer, _ in found:
            trainer.seed = self.experiment.seed
        return [trainer for trainer, _ in found], found[0][1]

    def _open(self, trainer: Trainer) -> Corpus:
        corpus = Corpus(self.experiment, trainer.inputs, self._data_path)
        expected = self._state.progress.begin["data"]
        if not corpus.is_of(expected):
            where = self._data_path or self.experiment.data_path
            raise StateMismatch(
                f"{where} is not the data that the run was made with; name it with "
                "--data"
            )
        self._corpus = corpus
        return corpus

    def _join(self, record: Mapping[str, Any]) -> None:
        """A worker fetches the state of a round from the recorded source."""
        name, index, round_ = (record[key] for key in ("worker", "index", "round"))
        worker = self._replay_worker(record)
        states = self._source(record)
        if states is not None and record.get("keep"):
            pairs = zip(states, worker.snapshots(), strict=True)
            states = [rejoining(state, own, index) for state, own in pairs]
        worker.take(states, round_, index, self.experiment.seed)
        self._workers[name] = worker

    def _replay_worker(self, record: Mapping[str, Any]) -> ReplayIsland:
        """The replay worker of a recorded worker, with the program for its target."""
        name, target, bundle = (record[key] for key in ("worker", "target", "bundle"))
        if name in self._workers and self._bundles[name][0] == target:
            return self._workers[name]
        if name in self._workers:
            self._workers.pop(name).close()
        trainers, digest = self._loaded(target)
        if digest != bundle:
            self._note(
                f"the program for {target} is not the recorded one "
                f"({digest[:12]}, not {bundle[:12]})"
            )
        self._bundles[name] = (target, digest)
        return ReplayIsland(trainers, self._open(trainers[0]))

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _source(self, record: Mapping[str, Any]) -> Snapshots | None:
        """The snapshot that each rank joined with; None: made from the seed."""
        source, round_ = record["source"], record["round"]
        if source == SEED:
            return None
        if source == WEIGHTS:
            path = self.experiment.initial_weights
            weights = {} if path is None else safetensors_io.read(path)
            whole = snapshot_of(Checkpoint(0, weights, {})) | self._brought()
            return [whole] * self.experiment.ranks
        if source == CHECKPOINT:
            if round_ not in self._saved:
                raise StateMismatch(
                    f"line {record['n'] + 1} of the ledger: {record['worker']} took "
                    f"round {round_} from a checkpoint that no line speaks of"
                )
            parts = record["parts"]
            saved = snapshot_of(reshard(self._saved[round_], len(parts)), parts)
            return [saved | self._brought()] * self.experiment.ranks
        held = self._workers.get(source)
        if held is None or held.committed != round_:
            raise StateMismatch(
                f"line {record['n'] + 1} of the ledger: {source} did not hold round "
                f"{round_} when {record['worker']} took it from there"
            )
        return held.snapshots()

    def _brought(self) -> safetensors_io.Arrays:
        """The values that came with the model, from the run's folder."""
        return {} if self._run is None else first_values.served(self._run)

    def _save(self, record: Mapping[str, Any]) -> None:
        """Keep the state of a checkpoint, if a worker fetches it later."""
        after = self._records[record["n"] + 1 :]
        if any(_takes(event, record["round"]) for event in after):
            round_ = record["round"]
            held = [(round_, self._workers[n].whole()) for n in record["members"]]
            self._saved[round_] = assembled(round_, held)

    def _make(self, record: Mapping[str, Any]) -> ReplayedRound:
        """Make a committed round again, with the members of its last attempt."""
        attempt, *others = reversed(self._attempts)
        names = attempt["members"]
        orders = self._orders(attempt)
        workers = [self._workers[name] for name in names]
        for worker, order in zip(workers, orders, strict=True):
            if order.carried:
                worker.learn(order.lease, order.steps)
        prepared = make(workers, orders)
        self._attempts.clear()
        for name in names:
            self._late.pop(name, None)
        tokens = sum(report.tokens for report in prepared)
        return ReplayedRound(
            round=record["round"],
            epoch=record["epoch"],
            workers=len(names),
            recorded=record["digest"],
            found=prepared[0].digest,
            loss_recorded=float(record["loss"]),
            loss_found=sum(p.loss * p.tokens for p in prepared) / tokens,
            cut=bool(others) and workers[0].trainer.resumes,
        )

    def _orders(self, recorded: Mapping[str, Any]) -> list[RoundStart]:
        """The orders of an attempt's members, by rank."""
        names, round_ = recorded["members"], recorded["round"]
        held = recorded["leases"]
        attempt = Attempt(
            round=round_,
            epoch=recorded["epoch"],
            members=names,
            leases={name: [(a, b) for a, b in held[name]] for name in names},
            began=0.0,
        )
        addresses = [self._workers[name].address for name in names]
        return attempt.orders(
            addresses,
            self._quantum(),
            lambda name: {
                "distance": recorded.get("distance"),
                **self._particulars(name, round_),
            },
        )

    def _particulars(self, name: str, round_: int) -> dict[str, Any]:
        """Further keys of the order of a member with steps from an older state."""
        progress = self._state.progress
        if progress.asynchronous:
            before = progress.history.digest(round_ - 1)
            source = self._holder(round_ - 1, before)
            return {"carried": True, "source": source, "digest": before}
        if name not in self._late:
            return {}
        weight = discount(self.experiment, round_ - self._late[name])
        return {"carried": True, "weight": weight}

    def _holder(self, round_: int, digest: str | None) -> str:
        """The address from which the state of a round can be fetched."""
        for worker in self._workers.values():
            if worker.holds(round_, digest):
                return worker.address
        if round_ not in self._saved:
            raise StateMismatch(f"no worker holds round {round_} of this ledger")
        if self._endpoint is None:
            self._endpoint = Endpoint.listen("127.0.0.1:0")
        saved = self._saved[round_]
        self._endpoint.serve_snapshot(lambda: (round_, snapshot_of(saved)))
        return self._endpoint.address

    def _quantum(self) -> int:
        """The samples of one inner step of one worker."""
        assert self._corpus is not None
        return quantum(self.experiment.effective_batch_size, self._corpus.batch)


def _takes(event: Mapping[str, Any], round_: int) -> bool:
    """Whether a worker may fetch the checkpoint of a round by this line."""
    if event["kind"] == "rewind":
        return event["to"] == round_
    taken = event["kind"] == "joined" and event["source"] == CHECKPOINT
    return taken and event["round"] == round_


def _events(
    records: Sequence[Mapping[str, Any]],
) -> dict[int, list[Mapping[str, Any]]]:
    """Joins and checkpoints, by the line after which the run had that state.

    That is the newest line before theirs after which the run was in the round they
    name.
    """
    found: dict[int, list[Mapping[str, Any]]] = {}
    at: dict[int, int] = {}
    committed = 0
    for position, record in enumerate(records):
        kind = record["kind"]
        if kind == "commit":
            committed = record["round"]
        elif kind == "rewind":
            committed = record["to"]
            at = {round_: line for round_, line in at.items() if round_ <= committed}
        if kind in ("commit", "rewind", "started"):
            at[committed] = position
        if kind not in ("joined", "checkpoint"):
            continue
        if record["round"] not in at or (kind != "joined" and "members" not in record):
            raise StateMismatch(
                f"line {position + 1} of the ledger does not say all that is needed to "
                "make the rounds again: the run was begun by an older pcp"
            )
        found.setdefault(at[record["round"]], []).append(record)
    return found
