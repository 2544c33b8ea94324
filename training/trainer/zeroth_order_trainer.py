"""A trainer that knows one number of a step: the slope along a direction it draws.

    @grad on each batch        the loss and the slope, one direction for all of them
    @grad_sync                 all members' slopes along all their directions
    @apply

A direction is drawn from the bundle's seed, the number of the inner step and the
member's rank, so it is another one on each member and in each step.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from pcp.manifest import Manifest
from pcp.training.data.corpus import Batch
from pcp.training.storage.state_names import OUTER
from pcp.training.trainer.bundle_trainer import BundleTrainer
from pcp.training.trainer.training_plan import plan_of

_STEPS = f"{OUTER}steps"


def direction(seed: int, step: int, rank: int) -> int:
    """A signed 64-bit number, another one for other arguments."""
    word = hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()[:8]
    return int.from_bytes(word, "little", signed=True)


class SlopeTrainer(BundleTrainer):
    """See the module."""

    def __init__(
        self, program: Any, manifest: Manifest, beside: Any | None = None
    ) -> None:
        super().__init__(program, manifest, beside)
        plan = plan_of(manifest)
        assert plan.synchronize == "step"
        assert plan.seed is not None
        self._seed, self._rank = plan.seed, 0

    def join(self, communicator: Any) -> None:
        """Exchanges go to this group from now on, under our rank in it."""
        super().join(communicator)
        self._rank = communicator.rank

    def step(self, batches: Sequence[Batch]) -> Any:
        """One inner step; without a batch, one on the others' slopes."""
        number = direction(self._seed, int(self._kept[_STEPS]), self._rank)
        word = np.array(number, np.int64)
        pairs = [self._call("grad", *self._inputs(batch, word)) for batch in batches]
        slopes = [np.asarray(slope).astype(np.float64) for _, slope in pairs]
        slope = np.array(np.mean(slopes) if slopes else 0.0, np.float32)
        tokens = sum(batch.inputs.size for batch in batches)
        gradients = self._exchanged(slope, word, tokens)
        results = self._call("apply", *self._local, *gradients, *self._state)
        count = len(self._local)
        self._local, self._state = list(results[:count]), list(results[count:])
        return [loss for loss, _ in pairs]

    def _inputs(self, batch: Batch, word: np.ndarray) -> list[Any]:
        data = self._data(batch)
        values = {"param": self._local, "data": data, "direction": [word]}
        return self._arguments("grad", values)

    def _exchanged(
        self, slope: np.ndarray, word: np.ndarray, tokens: int
    ) -> Sequence[Any]:
        """`@grad_sync` with the group: the gradient's estimate."""
        values = {
            "slope": [slope],
            "direction": [word],
            "tokens": [np.array(tokens, np.float32)],
            "outer": [self._kept[_STEPS]],
        }
        with self._meetings.one():
            *gradients, steps = self._call(
                "grad_sync", *self._arguments("grad_sync", values)
            )
            self._kept[_STEPS] = np.asarray(steps)
        return gradients
