"""Training in which a state is a hash of all that led to it.

A round's state is the hash of the one before and of what each member trained on, so a
worker that lost, repeated or invented something shows in the first digest. The inner
optimizer's state is the list of samples that it has seen.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from helpers.models.bigram_numpy import BATCH, BLOCK, VOCABULARY, bundle

from pcp.bundle import Bundle
from pcp.manifest import Collective
from pcp.training.data.dataset import token_inputs
from pcp.training.data.lease_pool import Range, merged
from pcp.training.storage import safetensors_io
from pcp.training.storage.island_parts import WHOLE
from pcp.training.storage.safetensors_io import Arrays
from pcp.training_plan import Asynchronous, EveryRound

NAME = "parameter/table"
STEP_SECONDS = 0.05


def program(own_clocks: bool = False) -> bytes:
    """A bundle whose members exchange deltas at the end of a round."""
    manifest = Bundle.from_bytes(bundle(), source="the bigram").manifest
    shape = (VOCABULARY, VOCABULARY)
    mean = Collective(shape=shape, dtype="f32", kind="all_reduce", bytes=4)
    plan = Asynchronous() if own_clocks else EveryRound()
    changes = {"collectives": {"delta": mean}, "training": plan}
    return Bundle.build(manifest.model_copy(update=changes), {}).to_bytes()


def first_state(seed: int) -> np.ndarray:
    """Before any round."""
    return _hashed(b"seed", str(seed).encode())


def next_state(before: np.ndarray, leases: Iterable[Sequence[Range]]) -> np.ndarray:
    """After a round of members with these leases."""
    parts = sorted(json.dumps(merged(lease)).encode() for lease in leases)
    return _hashed(before.tobytes(), *parts)


def digest(state: np.ndarray) -> str:
    """As a commit has it."""
    return safetensors_io.digest({NAME: state})


def _hashed(*parts: bytes) -> np.ndarray:
    content = hashlib.sha256(b"\0".join(parts)).digest()
    return np.frombuffer(content, np.uint8).copy()


class Samples:
    """For `pcp.training.data.corpus.Corpus`: a batch is the samples' numbers."""

    digest = "0" * 64
    validation_batches = 2

    ahead, readers, parts = 2, 1, ()
    tokenizer: ClassVar = {"kind": "none"}

    def __init__(self, samples: int) -> None:
        self.samples, self.batch = samples, BATCH

    def is_of(self, recorded: str) -> bool:
        """There are no other ones."""
        return recorded == self.digest

    def check_vocabulary(self, shapes: object) -> None:
        """There are no ids."""

    def limit_rows(self, rows: object) -> None:
        """No input indexes a table."""

    def read(self, positions: np.ndarray) -> np.ndarray:
        """These samples."""
        return positions

    def validation(self, number: int) -> int:
        """A held-out batch."""
        return number


class HashTrainer:
    """`pcp.training.trainer.interface.Trainer` of nothing but hashes.

    `wait(seconds)` passes time, `speed()` is how much longer a step takes. `once` says
    whether no inner state may have seen a sample twice: two learners on clocks of their
    own may make the same of one lease, and their inner states differ all the same.
    """

    parts, axes_inside = WHOLE, ()
    inputs = token_inputs(BATCH, BLOCK)
    batch, block = BATCH, BLOCK
    parameter_shapes, rows = ((VOCABULARY, VOCABULARY),), {}
    every_step, resumes, progress = False, False, ()
    waited, inner_exchange, moved = 0.0, (0, None), 1.0
    gradient_norm = learning_rate = None
    seed: int | None = None

    def __init__(
        self,
        wait: Callable[[float], None],
        speed: Callable[[], float],
        once: bool = True,
    ) -> None:
        self._wait, self._speed, self._once = wait, speed, once
        self.shared: Arrays = {}
        self.private: Arrays = {}
        self.frozen: Arrays = {}
        self.metrics: dict[str, int | float] = {}
        self._seen = np.zeros(0, np.int64)
        self._from: np.ndarray | None = None
        """The state that the inner steps were begun from, or moved along to."""
        self._made: list[int] = []

    def fresh(self, seed: int) -> None:
        """As before the first round."""
        self.shared, self._seen = {NAME: first_state(seed)}, np.zeros(0, np.int64)
        self._from = None

    def restore(self, snapshot: Mapping[str, np.ndarray], index: int) -> None:
        """The state, and one of the inner ones."""
        self._wait(0.0)
        self.shared = {NAME: np.array(snapshot[NAME])}
        inner = sorted(name for name in snapshot if name.startswith("inner/"))
        own = f"inner/{index}/seen"
        found = own if own in inner else inner[index % len(inner)]
        self._seen, self._from = np.array(snapshot[found]), None

    def freeze(self, given: Mapping[str, np.ndarray]) -> None:
        """Nothing is frozen."""

    def join(self, communicator: Any) -> None:
        """Nothing is exchanged before the end of a round."""

    def begin(self, steps: int = 1, weight: float = 1.0) -> None:
        """From the shared state."""
        self._from, self._made = self.shared[NAME], []

    def turn(self) -> None:
        """Nothing is due between two steps."""

    def resume(self, weight: float = 1.0) -> None:
        """A round begins again."""
        raise AssertionError("a round that does not resume was resumed")

    def step(self, batches: Sequence[np.ndarray]) -> list[np.float32]:
        """It takes its time."""
        self._wait(STEP_SECONDS * self._speed())
        for batch in batches:
            self._made += map(int, batch.reshape(-1))
        self._seen = np.concatenate([self._seen, *(b.reshape(-1) for b in batches)])
        return [np.float32(1.0)] * len(batches)

    def outer(self, weight: float, communicator: Any) -> Arrays:
        """The hash of everybody's part."""
        assert self._from is not None, "an outer step without inner ones"
        own = self.shared[NAME]
        assert (self._from == own).all(), "the inner steps began from another state"
        seen = self._seen.tolist()
        twice = self._once and len(set(seen)) < len(seen)
        assert not twice, f"the inner state has seen {seen}"
        lease = merged((at, at + 1) for at in self._made)
        return {NAME: next_state(own, communicator.gather(lease))}

    def adopt(self, new: Arrays) -> None:
        """Make this the state; the next thing may be long in coming."""
        self.shared = {NAME: new[NAME]}
        self._wait(0.0)

    def catch_up(self, shared: Arrays) -> None:
        """What inner steps made moves along."""
        if self._from is not None and (self._from == self.shared[NAME]).all():
            self._from = shared[NAME]
        self.shared = {NAME: shared[NAME]}
        self._wait(0.0)

    def inner(self) -> Arrays:
        """What was seen."""
        return {"seen": self._seen.copy()}

    def evaluate(self, batch: Any) -> float:
        """Some loss."""
        self._wait(0.2 * STEP_SECONDS)
        return 1.0

    def close(self) -> None:
        """Nothing is held."""
