"""The contract between a worker and the model it trains.

`pcp.training.trainer.bundle_trainer.BundleTrainer` is what fulfils it outside of tests.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pcp.manifest import TensorSpec
from pcp.training.data.dataset import Batch
from pcp.training.storage.island_parts import IslandParts
from pcp.training.storage.safetensors_io import Arrays


class Trainer(Protocol):
    """One model with its optimizer state, as the rounds see it."""

    inputs: tuple[TensorSpec, ...]
    """What the program takes of each batch."""
    batch: int
    """Samples of a batch."""
    block: int
    """Tokens of a sample; 1 where a sample is no sequence."""
    rows: Mapping[str, int]
    """Of the tables that the data index, by input."""
    seed: int | None
    """The run's, once it is known."""
    evaluates_averages: bool
    """Whether `evaluate` takes averages of the parameters, where there are any."""
    every_step: bool
    """Members meet in every inner step: a round is theirs together."""
    resumes: bool
    """Exchanges take place in mid-round, and the round goes on in another group."""
    parts: IslandParts
    """How the state is cut among the ranks of an island; of a whole worker, not."""
    axes_inside: Sequence[tuple[str, ...]]
    """Along which axes the ranks of an island form groups; (): all of them in one."""

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
        """Parameters and outer state, by prefixed names: what all agree on."""
        ...

    @property
    def private(self) -> Arrays:
        """Outer state of this worker's own, by name."""
        ...

    @property
    def frozen(self) -> Arrays:
        """What the model brings and no step changes, by name."""
        ...

    def freeze(self, given: Mapping[str, np.ndarray]) -> None:
        """Take what the model brings, by name."""
        ...

    @property
    def metrics(self) -> dict[str, int | float]:
        """What the program gave beside its losses since the round began."""
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
        """The group of the round that begins, or that is tried again.

        Of a rank of an island, the groups by the axes that they are along.
        """
        ...

    @property
    def progress(self) -> Sequence[int]:
        """Of each exchange of a round that resumes, the epoch in which it was complete.

        -1 for one that is not. All members of a run have as many.
        """
        ...

    def begin(self, steps: int = 1, tokens: int = 1) -> None:
        """Begin a round of so many inner steps and tokens of this worker's.

        Local parameters := the shared ones.
        """
        ...

    def turn(self) -> None:
        """Before the first inner step and after each: exchanges that are due."""
        ...

    def resume(self) -> None:
        """Go on with a round in a new group, behind the steps that were made."""
        ...

    def step(self, batches: Sequence[Batch]) -> Any:
        """One inner step; returns the loss, perhaps still on the device."""
        ...

    @property
    def moved(self) -> float:
        """How far the inner steps went: the L2 norm of the parameters' change."""
        ...

    @property
    def gradient_norm(self) -> float | None:
        """The L2 norm of the last inner step's gradient; None where that is unknown."""
        ...

    def outer(self, tokens: float, communicator: Any) -> Arrays:
        """The new state, shared and private, from all members' local parameters."""
        ...

    def adopt(self, new: Arrays) -> None:
        """Make this the state; private state stays where `new` has none."""
        ...

    def catch_up(self, shared: Arrays) -> None:
        """Go over to a newer shared state; the inner steps' changes stay."""
        ...

    @property
    def inner_exchange(self) -> "tuple[int, float | None]":
        """Exchanges in between that this round came to; seconds waited in the last."""
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
