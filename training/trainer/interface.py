"""The interface of trainers, between a worker and its model.

`pcp.training.trainer.bundle_trainer.BundleTrainer` implements it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pcp.manifest import TensorSpec
from pcp.training.data.dataset import Batch
from pcp.training.storage.island_parts import IslandParts
from pcp.training.storage.safetensors_io import Arrays


class Trainer(Protocol):
    """A model with its optimizer state, for the rounds of a worker."""

    inputs: tuple[TensorSpec, ...]
    """The program's inputs of each batch."""
    batch: int
    """Samples of a batch."""
    block: int
    """Tokens of a sample; 1 where a sample is no sequence."""
    rows: Mapping[str, int]
    """The rows of the tables that the data index, by input."""
    seed: int | None
    """The run's seed, once it is known."""
    evaluates_averages: bool
    """Whether `evaluate` uses averages of the parameters, where there are any."""
    every_step: bool
    """Whether each inner step has an exchange: members make a round together."""
    resumes: bool
    """Whether a round with inner exchanges can be resumed in another group."""
    parts: IslandParts
    """How the ranks of an island cut the state; a whole worker has one part."""
    axes_inside: Sequence[tuple[str, ...]]
    """The axes along which the ranks of an island form groups; (): one of all."""

    @property
    def waited(self) -> float:
        """Seconds that the inner steps of this round spent in exchanges."""
        ...

    @property
    def parameter_shapes(self) -> Sequence[Sequence[int]]:
        """Shapes of trained and frozen tensors."""
        ...

    @property
    def shared(self) -> Arrays:
        """The shared state, parameters and outer state, by prefixed names."""
        ...

    @property
    def private(self) -> Arrays:
        """The private outer state of this worker, by name."""
        ...

    @property
    def frozen(self) -> Arrays:
        """The frozen tensors that come with the model, by name."""
        ...

    def freeze(self, given: Mapping[str, np.ndarray]) -> None:
        """Take the values that come with the model, by name."""
        ...

    @property
    def metrics(self) -> dict[str, int | float]:
        """The metrics of the program since the round began."""
        ...

    def fresh(self, seed: int) -> None:
        """Start from the seed."""
        ...

    def restore(self, snapshot: Mapping[str, np.ndarray], index: int) -> None:
        """Start from a snapshot; `index` picks one of its inner states.

        The private state is that of `index` if there is one, else it begins anew.
        """
        ...

    def join(self, communicator: Any) -> None:
        """Use the group of the round that begins, or is tried again.

        For a rank of an island, the groups by their axes.
        """
        ...

    @property
    def progress(self) -> Sequence[int]:
        """The epochs of complete exchanges of a resumed round; -1: not complete.

        All members of a run have as many exchanges.
        """
        ...

    def begin(self, steps: int = 1, weight: float = 1.0) -> None:
        """Begin a round of so many inner steps, which weigh so much in it.

        Local parameters := the shared ones. A weight is that beside other members', of
        which the one with most steps has 1: they get the exact mean if all are alike.
        """
        ...

    def turn(self) -> None:
        """Make the exchanges due before the first inner step, or after one."""
        ...

    def resume(self, weight: float = 1.0) -> None:
        """Resume a round in a new group, after the steps that were made."""
        ...

    def step(self, batches: Sequence[Batch]) -> Any:
        """Make one inner step; returns the loss, perhaps still on the device."""
        ...

    @property
    def moved(self) -> float:
        """The L2 norm of the inner steps' change of the parameters."""
        ...

    @property
    def gradient_norm(self) -> float | None:
        """The L2 norm of the last inner step's gradient; None where that is unknown."""
        ...

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of the last inner step; None where that is unknown."""
        ...

    def outer(self, weight: float, communicator: Any) -> Arrays:
        """The new state, shared and private, from all members' local parameters."""
        ...

    def adopt(self, new: Arrays) -> None:
        """Make this the state; private state stays where `new` has none."""
        ...

    def catch_up(self, shared: Arrays) -> None:
        """Change to a newer shared state; the inner steps' changes stay."""
        ...

    @property
    def inner_exchange(self) -> "tuple[int, float | None]":
        """Inner exchanges that this round has entered; seconds waited in the last."""
        ...

    def inner(self) -> Arrays:
        """Copies of the inner optimizer's state."""
        ...

    def evaluate(self, batch: Batch) -> float:
        """The loss of the shared parameters, or of their averages."""
        ...

    def close(self) -> None:
        """Release the device."""
        ...
