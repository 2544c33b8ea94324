"""The state of a worker: the committed one, and the results it has made since.

The worker's thread changes it, the link's thread describes it to a shepherd, and
the threads of the snapshot server hand it out; a lock keeps the three apart.
"""

import threading
from dataclasses import dataclass, field
from typing import Any

from pcp.errors import StateMismatch
from pcp.training.data.lease_pool import Range
from pcp.training.storage import safetensors_io
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import (
    FROZEN,
    INNER,
    OWN,
    PRIVATE,
    moved,
    prefixed,
)
from pcp.training.trainer.interface import Trainer
from pcp.training.wire.messages import (
    Commit,
    Prepared,
    Ready,
)


@dataclass
class InnerResult:
    """The inner steps of one round, done once however often the group changes."""

    round: int
    lease: list[Range]
    loss: float
    """Mean over the inner steps."""
    loss_first: float
    """Of the first inner step."""
    steps: int
    tokens: int
    seconds: float
    data_wait: float = 0.0
    """Of these seconds, how many the steps waited for their batches."""
    nonfinite: tuple[int, float] | None = None
    """The first inner step, from 1, with a loss that is not finite, and that loss."""
    metrics: dict[str, int | float] = field(default_factory=dict)
    """Of the program, over the inner steps."""
    gradient_norm: float | None = None
    """Of the last inner step, where it is known."""
    epoch: int | None = None
    """Of the group that made the steps, if they were made together."""


@dataclass
class PartialRound:
    """Inner steps of a round that has exchanges in between."""

    round: int
    lease: list[Range]
    losses: list[Any] = field(default_factory=list)
    steps: int = 0
    """How many were made."""
    seconds: float = 0.0
    data_wait: float = 0.0


class WorkerState:
    """The state of one worker."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._trainer: Trainer | None = None
        self.run: str | None = None
        self.island: str | None = None
        self.coordinate: int | None = None
        """Which rank of the island this is; both None: of none so far."""
        self.committed: int | None = None
        """The round of the trainer's state; None before the first."""
        self.work: InnerResult | None = None
        self.partial_round: PartialRound | None = None
        self.prepared: Prepared | None = None
        self.candidate: Arrays = {}
        """The state that was prepared and not committed yet."""
        self.dirty = False
        """Inner steps were made since the last commit."""
        self._snapshot: tuple[int, Arrays] | None = None

    @property
    def loaded(self) -> bool:
        """Whether there is a trainer."""
        return self._trainer is not None

    @property
    def trainer(self) -> Trainer:
        """The model; `StateMismatch` before a shepherd sent one."""
        if self._trainer is None:
            raise StateMismatch("the shepherd sent no program to run")
        return self._trainer

    def load(self, trainer: Trainer) -> None:
        """Take another model; the old one is closed."""
        if self._trainer is not None:
            self._trainer.close()
        with self.lock:
            self._trainer = trainer

    def place(self, island: str | None, coordinate: int) -> None:
        """It is this rank of an island; what another coordinate held does not count."""
        if self.coordinate not in (None, coordinate) and island is not None:
            self.forget()
        with self.lock:
            self.island = island
            self.coordinate = None if island is None else coordinate

    def exchange(self, trainer: Trainer) -> None:
        """Take another program for the same model, and go on from what is held.

        Inner steps since the last commit are lost.
        """
        held = None if self.committed is None else self.snapshot()[1]
        self.load(trainer)
        if held is not None:
            trainer.restore(moved(held, f"{PRIVATE}{OWN}/", f"{PRIVATE}0/"), 0)
            with self.lock:
                self.work, self.partial_round, self.dirty = None, None, False

    def describe(self) -> dict[str, Any]:
        """For a `Hello`: what a shepherd must know to go on with this worker."""
        with self.lock:
            held = self.trainer.shared if self.committed is not None else None
            return {
                "run": self.run,
                "committed": self.committed,
                "digest": safetensors_io.digest(held) if held else None,
                "prepared": self.prepared,
                "island": self.island,
                "coordinate": self.coordinate,
            }

    def ready(self) -> Ready:
        """The committed round, for a shepherd that may believe another."""
        if self.committed is None:
            raise StateMismatch("this worker holds no committed state yet")
        digest = safetensors_io.digest(self.trainer.shared)
        return Ready(round=self.committed, digest=digest)

    def snapshot(self) -> tuple[int, Arrays]:
        """The committed state and this worker's own, for a peer that fetches it."""
        with self.lock:
            if self._snapshot is None:
                raise StateMismatch("this worker holds no committed state yet")
            return self._snapshot

    def forget(self) -> None:
        """Nothing that was held counts any more."""
        with self.lock:
            self.committed = self.prepared = self.work = self._snapshot = None
            self.partial_round = None
            self.candidate = {}

    def hold(self, reached: int) -> None:
        """The trainer's state is that of a committed round: serve it from now on."""
        inner, private = self.trainer.inner(), self.trainer.private
        mine = prefixed(f"{INNER}0/", [*inner], inner.values())
        mine |= prefixed(f"{PRIVATE}{OWN}/", [*private], private.values())
        frozen = self.trainer.frozen
        mine |= prefixed(FROZEN, [*frozen], frozen.values())
        with self.lock:
            self.committed = reached
            self.prepared = self.work = self.partial_round = None
            self.candidate, self.dirty = {}, False
            self._snapshot = (reached, self.trainer.shared | mine)

    def catch_up(self, reached: int, shared: Arrays) -> None:
        """Hold a newer committed state, and keep what the inner steps made.

        A peer that starts from here has the inner state of before those steps.
        """
        self.trainer.catch_up(shared)
        with self.lock:
            own = {} if self._snapshot is None else self._snapshot[1]
            kept = (INNER, PRIVATE, FROZEN)
            mine = {k: a for k, a in own.items() if k.startswith(kept)}
            self.committed, self.prepared, self.candidate = reached, None, {}
            self._snapshot = (reached, self.trainer.shared | mine)

    def propose(self, candidate: Arrays, prepared: Prepared) -> None:
        """A round is prepared here; it waits for the commit."""
        with self.lock:
            self.candidate, self.prepared = candidate, prepared

    def correct(self, commit: Commit, shared: Arrays) -> bool:
        """Have the shared part of what is prepared from another member.

        False where that is not the state that was committed.
        """
        if safetensors_io.digest(shared) != commit.digest or self.prepared is None:
            return False
        with self.lock:
            self.candidate |= shared
            digest = {"digest": commit.digest}
            self.prepared = self.prepared.model_copy(update=digest)
        return True

    def adopt(self, commit: Commit) -> bool:
        """The prepared round is committed; False for a round that is behind us."""
        prepared = self.prepared
        if prepared is None or commit.round != prepared.round:
            return False
        if commit.digest != prepared.digest:
            raise StateMismatch(
                f"round {commit.round} was committed as {commit.digest[:12]}, here it "
                f"is {prepared.digest[:12]}"
            )
        self.trainer.adopt(self.candidate)
        self.hold(commit.round)
        return True

    def undo_inner_steps(self) -> None:
        """Back to the inner state of the last commit, if steps were made since."""
        if self.dirty:
            state = self.snapshot()[1]
            state = moved(state, f"{PRIVATE}{OWN}/", f"{PRIVATE}0/")
            self.trainer.restore(state, 0)
        self.dirty = True
