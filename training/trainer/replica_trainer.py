"""A trainer whose parameters are its own: members' replicas differ by design.

The parameters are private state, under `replica.<name>`; the members agree on the
rest of the outer state, which counts the rounds. A newcomer begins with the replica
of whoever it fetched the state from, or with the mean that a checkpoint holds.

Where the bundle's exchanges go along the axis `pair`, the members fall into pairs
that are drawn from its seed and the round, so that a run that is stopped and resumed
draws the same ones. A round that lost a member has other pairs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pcp.manifest import Manifest
from pcp.runtime.program.gossip_pair import Pair, partners
from pcp.training.storage.safetensors_io import Arrays, mean
from pcp.training.storage.state_names import (
    OUTER,
    OWN,
    PARAMETER,
    PRIVATE,
    REPLICA,
    moved,
)
from pcp.training.trainer.bundle_trainer import BundleTrainer
from pcp.training.trainer.training_plan import plan_of

_ROUNDS = f"{OUTER}rounds"


class ReplicaTrainer(BundleTrainer):
    """See the module. Inside, the replica is where others have what they share."""

    def __init__(
        self, program: Any, manifest: Manifest, beside: Any | None = None
    ) -> None:
        super().__init__(program, manifest, beside)
        plan = plan_of(manifest)
        assert plan.synchronize == "round"
        self._pairs = plan.seed

    @property
    def shared(self) -> Arrays:
        """What all agree on: outer state without parameters."""
        return {k: a for k, a in self._shared.items() if not k.startswith(PARAMETER)}

    @property
    def private(self) -> Arrays:
        """Outer state of this worker's own, and its replica."""
        mine = {k: a for k, a in self._shared.items() if k.startswith(PARAMETER)}
        return super().private | {
            REPLICA + k.removeprefix(PARAMETER): a for k, a in mine.items()
        }

    def restore(self, snapshot: Mapping[str, np.ndarray], index: int) -> None:
        """Our replica, else the snapshot's parameters, else its owner's replica."""
        start = dict(snapshot)
        for who in (OWN, index):
            prefix = f"{PRIVATE}{who}/{REPLICA}"
            if who == index or PARAMETER + self._names[0] not in snapshot:
                found = {k: a for k, a in snapshot.items() if k.startswith(prefix)}
                start |= moved(found, prefix, PARAMETER)
        super().restore(start, index)

    def join(self, communicator: Any) -> None:
        """Exchanges go to this group, or to our pair in it, from now on."""
        super().join(self._groups(communicator))

    def outer(self, tokens: float, communicator: Any) -> Arrays:
        """The new state: what all agree on, and what is our own."""
        new = super().outer(tokens, self._groups(communicator))
        return moved(new, PARAMETER, f"{PRIVATE}{REPLICA}")

    def adopt(self, new: Arrays) -> None:
        """Make this the state; the replica stays where `new` has none."""
        mine = {k: a for k, a in self._shared.items() if k.startswith(PARAMETER)}
        super().adopt(mine | moved(new, f"{PRIVATE}{REPLICA}", PARAMETER))

    def _groups(self, communicator: Any) -> Any:
        if self._pairs is None:
            return communicator
        turn = int(self._shared[_ROUNDS])
        matching = partners(communicator.world_size, self._pairs, turn)
        return {"pair": Pair(communicator, matching[communicator.rank], turn)}


def mean_of(replicas: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """The mean of members' replicas, added up in float64 in their order."""
    names = replicas[0]
    return {name: mean([replica[name] for replica in replicas]) for name in names}
