"""The state of a worker: the committed state, and the results made since.

The worker's thread changes the state, the link's thread describes it to a shepherd, and
the threads of the snapshot server hand it out; a lock keeps the three apart.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pcp.errors import StateMismatch
from pcp.training.data.lease_pool import Range
from pcp.training.storage import safetensors_io
from pcp.training.storage.island_shapes import IslandShapes, RankPlace
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
    """The result of a round's inner steps, made once for all groups of the round."""

    round: int
    lease: list[Range]
    loss: float
    """The mean over the inner steps."""
    loss_first: float
    """The loss of the first inner step."""
    steps: int
    tokens: int
    seconds: float
    data_wait: float = 0.0
    """How many of these seconds the steps waited for their batches."""
    nonfinite: tuple[int, float] | None = None
    """The first inner step, from 1, with a loss that is not finite, and that loss."""
    metrics: dict[str, int | float] = field(default_factory=dict)
    """The metrics of the program, over the inner steps."""
    gradient_norm: float | None = None
    """The norm of the last inner step's gradient, where it is known."""
    learning_rate: float | None = None
    """The learning rate of that step, where it is known."""
    epoch: int | None = None
    """The epoch of the group that made the steps, if there were inner exchanges."""


@dataclass
class PartialRound:
    """Inner steps of a round that has exchanges between them."""

    round: int
    lease: list[Range]
    losses: list[Any] = field(default_factory=list)
    steps: int = 0
    """How many steps were made."""
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
        """The coordinate in the island; both None: this was no rank so far."""
        self.shape = 0
        """Which of the shapes the island has."""
        self.shapes: IslandShapes | None = None
        """How islands cut the state, where not all do alike."""
        self.committed: int | None = None
        """The round of the trainer's state; None before the first."""
        self.work: InnerResult | None = None
        self.partial_round: PartialRound | None = None
        self.prepared: Prepared | None = None
        self.candidate: Arrays = {}
        """The report of the state that is prepared and not committed yet."""
        self.dirty = False
        """Whether inner steps were made since the last commit."""
        self._snapshot: tuple[int, Arrays] | None = None

    @property
    def loaded(self) -> bool:
        """Whether there is a trainer."""
        return self._trainer is not None

    @property
    def trainer(self) -> Trainer:
        """The trainer; `StateMismatch` before a shepherd sent a program."""
        if self._trainer is None:
            raise StateMismatch("the shepherd sent no program to run")
        return self._trainer

    def load(self, trainer: Trainer) -> None:
        """Use the trainer of another model; the old one is closed."""
        if self._trainer is not None:
            self._trainer.close()
        with self.lock:
            self._trainer = trainer

    def place(
        self,
        island: str | None,
        coordinate: int,
        shape: int = 0,
        shapes: IslandShapes | None = None,
    ) -> None:
        """Be a rank of an island; the state of another coordinate does not count."""
        if island is not None and self.moves(coordinate, shape):
            self.forget()
        with self.lock:
            self.island = island
            self.coordinate = None if island is None else coordinate
            self.shape, self.shapes = shape, shapes

    def moves(self, coordinate: int, shape: int) -> bool:
        """Whether this was a rank elsewhere."""
        return self.coordinate is not None and (
            (self.coordinate, self.shape) != (coordinate, shape)
        )

    @property
    def rank(self) -> RankPlace:
        """Where this is a rank, among islands of unlike shape."""
        return RankPlace(self.shape, self.coordinate or 0)

    def digest(self, shared: Mapping[str, np.ndarray]) -> str:
        """The digest of this worker's shared state, or of a rank's part of one."""
        if self.shapes is None:
            return safetensors_io.digest(shared)
        return self.shapes.digest_of(shared, self.rank)

    def exchange(self, trainer: Trainer) -> None:
        """Use another program for the same model, and keep the state.

        Inner steps since the last commit are lost.
        """
        held = None if self.committed is None else self.snapshot()[1]
        self.load(trainer)
        if held is not None:
            trainer.restore(moved(held, f"{PRIVATE}{OWN}/", f"{PRIVATE}0/"), 0)
            with self.lock:
                self.work, self.partial_round, self.dirty = None, None, False

    def describe(self) -> dict[str, Any]:
        """The keys of a `Hello` that describe the state of this worker."""
        with self.lock:
            held = self.trainer.shared if self.committed is not None else None
            return {
                "run": self.run,
                "committed": self.committed,
                "digest": self.digest(held) if held else None,
                "prepared": self.prepared,
                "island": self.island,
                "coordinate": self.coordinate,
                "shape": self.shape,
            }

    def ready(self) -> Ready:
        """`Ready` with the committed round."""
        if self.committed is None:
            raise StateMismatch("this worker holds no committed state yet")
        digest = self.digest(self.trainer.shared)
        return Ready(round=self.committed, digest=digest)

    def snapshot(self) -> tuple[int, Arrays]:
        """The committed state with this worker's own part, for a peer to fetch."""
        with self.lock:
            if self._snapshot is None:
                raise StateMismatch("this worker holds no committed state yet")
            return self._snapshot

    def forget(self) -> None:
        """Drop all state."""
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
            self.advance(reached)
            self._snapshot = (reached, self.trainer.shared | mine)

    def advance(self, reached: int) -> None:
        """The trainer's state is that of a committed round, which nobody asks for."""
        with self.lock:
            self.committed, self._snapshot = reached, None
            self.prepared = self.work = self.partial_round = None
            self.candidate, self.dirty = {}, False

    def catch_up(self, reached: int, shared: Arrays) -> None:
        """Hold a newer committed state, and keep the result of the inner steps.

        A peer that fetches the state from here gets the inner state before those steps.
        """
        self.trainer.catch_up(shared)
        with self.lock:
            own = {} if self._snapshot is None else self._snapshot[1]
            kept = (INNER, PRIVATE, FROZEN)
            mine = {k: a for k, a in own.items() if k.startswith(kept)}
            self.committed, self.prepared, self.candidate = reached, None, {}
            self._snapshot = (reached, self.trainer.shared | mine)

    def propose(self, candidate: Arrays, prepared: Prepared) -> None:
        """Prepare a round; the prepared state waits for the commit."""
        with self.lock:
            self.candidate, self.prepared = candidate, prepared

    def correct(self, commit: Commit, shared: Arrays) -> bool:
        """Replace the shared part of the prepared state by another member's.

        False where that is not the state that was committed.
        """
        if self.digest(shared) != commit.digest or self.prepared is None:
            return False
        with self.lock:
            self.candidate |= shared
            digest = {"digest": commit.digest}
            self.prepared = self.prepared.model_copy(update=digest)
        return True

    def adopt(self, commit: Commit) -> bool:
        """Adopt the prepared round; False for an older round."""
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
        """Return to the inner state of the last commit, if steps were made since."""
        if self.dirty:
            state = self.snapshot()[1]
            state = moved(state, f"{PRIVATE}{OWN}/", f"{PRIVATE}0/")
            self.trainer.restore(state, 0)
        self.dirty = True
