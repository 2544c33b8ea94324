"""An exchange in every inner step, between @grad and @apply.

The inner optimizers' states of all members are then equal, so they are shared state
too. Such a round begins and ends with shared state, and is repeated from its beginning.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import OUTER, prefixed
from pcp.training.trainer.exchange import Exchange, by_name, by_port, weighted
from pcp.training.trainer.functions import Functions, Key, Values
from pcp.training.trainer.step_loop import Steps

_INNER = f"{OUTER}inner."
"""The prefix of the inner optimizer's state as shared state."""


class StepExchange(Exchange):
    """`@grad_sync` on the gradients of each inner step."""

    joins = True

    def __init__(self, functions: Functions, steps: Steps) -> None:
        super().__init__(functions, steps)
        self._kept: Arrays = {}
        """The outer state within a round."""

    def new_state(
        self, parameters: Mapping[str, np.ndarray], inner: Mapping[str, np.ndarray]
    ) -> Arrays:
        """The first state, with the inner optimizer's."""
        new = super().new_state(parameters, inner)
        return new | prefixed(_INNER, list(inner), map(np.array, inner.values()))

    def begin(self, state: Arrays, steps: int, weight: float) -> None:
        """Begin a round with the shared state of the inner optimizer."""
        super().begin(state, steps, weight)
        inner = {key: state[_INNER + key[1]] for key in self._steps.held("state")}
        self._steps.hold(inner)
        takes = self._functions.signatures["grad_sync"].inputs
        keys = [t.key for t in takes if t.role in ("outer", "private")]
        ports = by_port(state)
        self._kept = by_name({key: ports[key] for key in keys}, self.home)

    def gradients(self, batches: Sequence[Arrays]) -> tuple[list[Any], dict[Key, Any]]:
        """The losses, and the gradients of all members.

        Without a batch, the gradients of the other members.
        """
        losses, mean = super().gradients(batches)
        return losses, self.exchanged(mean, len(batches))

    def exchanged(self, found: Values, batches: int) -> dict[Key, Any]:
        """`@grad_sync` with the group, on gradients of so many of its own batches."""
        values = by_port(self._kept) | dict(found) | weighted(batches)
        with self.sync_wait_timer.one():
            results = self._functions("grad_sync", values)
            gradients = {key: v for key, v in results.items() if key[0] == "grad"}
            rest = {key: v for key, v in results.items() if key[0] != "grad"}
            self._kept = by_name(rest, self.home)
        return gradients

    def outer(self, weight: float, communicator: Any, state: Arrays) -> Arrays:
        """The new state: that of the last inner step."""
        own = super().outer(weight, communicator, state)
        return own | self.local("state", _INNER) | self._kept

    def close(self) -> None:
        """Release arrays on the device."""
        self._kept = {}
