"""Zeroth-order inner steps: of each batch only the slope along a drawn direction.

    @grad on each batch        the loss and the slope, one direction for all batches
    @grad_sync                 all members' slopes along all their directions
    @apply

A direction is drawn from the plan's seed, the number of the inner step and the
member's rank, so it differs between members and steps.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from pcp.training.storage.safetensors_io import Arrays
from pcp.training.trainer.exchange import by_port
from pcp.training.trainer.functions import Functions, Key, Values
from pcp.training.trainer.step_exchange import StepExchange
from pcp.training.trainer.step_loop import Steps

_DIRECTION: Key = ("direction", "direction")
_SLOPE: Key = ("slope", "slope")
_STEPS: Key = ("outer", "steps")


def direction(seed: int, step: int, rank: int) -> int:
    """A signed 64-bit number, another one for other arguments."""
    word = hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()[:8]
    return int.from_bytes(word, "little", signed=True)


class SlopeExchange(StepExchange):
    """The strategy of zeroth-order algorithms; see the module."""

    def __init__(self, seed: int, functions: Functions, steps: Steps) -> None:
        super().__init__(functions, steps)
        self._seed, self._rank = seed, 0

    def join(self, communicator: Any, state: Arrays) -> None:
        """Use this group for exchanges, and this member's rank in it."""
        super().join(communicator, state)
        self._rank = communicator.rank

    def norm_of(self, gradients: Values) -> float | None:
        """None: slopes along drawn directions are no gradient."""
        return None

    def gradients(self, batches: Sequence[Arrays]) -> tuple[list[Any], dict[Key, Any]]:
        """The losses, and the estimate of the gradient from all members' slopes."""
        done = int(by_port(self._kept)[_STEPS])
        number = direction(self._seed, done, self._rank)
        along = {_DIRECTION: np.array(number, np.int64)}
        pairs = [self._steps.gradients(batch, along) for batch in batches]
        slopes = [np.asarray(found[_SLOPE]).astype(np.float64) for _, found in pairs]
        slope = np.array(np.mean(slopes) if slopes else 0.0, np.float32)
        gradients = self.exchanged({_SLOPE: slope, **along}, len(batches))
        return [loss for loss, _ in pairs], gradients
