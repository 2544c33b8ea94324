"""The check that members of a mesh hold the same copies of kept tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pcp.errors import RuntimeFault
from pcp.layout import join
from pcp.manifest import Manifest, TensorSpec
from pcp.mesh import Mesh
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.program.replica_comparison import Copy, check_copies
from pcp.training.trainer.step_loop import MODEL_STATE, Steps, kept

#: Steps between two comparisons where members run code for unlike targets.
USUAL = 100
LOSSES = "losses"


@dataclass(frozen=True)
class Agreement:
    """Compares parameters and state every so many steps; with `every` 0 never.

    `whole` is the bundle's manifest, `own` this member's, `rank` its rank in `mesh`.
    """

    world: Communicator
    whole: Manifest
    own: Manifest
    mesh: Mesh
    every: int

    def due(self, step: int, *, last: bool = False) -> bool:
        """Whether it is time to compare."""
        return bool(self.every) and (last or not step % self.every)

    def check(self, training: Steps, step: int, *, last: bool = False) -> None:
        """Compare if it is time to; `StateMismatch` if members differ."""
        if not self.due(step, last=last):
            return
        copies = self._copies(training)
        check_copies(self.world, copies, self.mesh.devices, f"after step {step}")

    def _copies(self, training: Steps) -> list[Copy]:
        place = self.mesh.members[self.world.rank]
        values = dict(
            zip(
                [(t.role, t.name) for t in kept(self.own)],
                training.values(),
                strict=True,
            )
        )
        copies = []
        for spec in kept(self.whole):
            slices = spec.layout.slices(spec.shape, self.mesh, place)
            part = tuple((cut.start, cut.stop) for cut in slices)
            copies.append(Copy(spec.name, part, values.get((spec.role, spec.name))))
        return copies


def joined_results(
    mesh: Mesh,
    specs: Mapping[str, TensorSpec],
    parts: Sequence[Mapping[str, NDArray]],
) -> list[NDArray]:
    """The whole results, by key; `RuntimeFault` where two devices hold other bits.

    Only some devices may have a result; each of those has all of it.
    """
    whole = []
    for key, spec in specs.items():
        held = [member.get(key) for member in parts]
        try:
            whole.append(join(held, spec.shape, spec.layout, mesh))
        except ValueError as error:
            raise RuntimeFault(f"result {key}: {error}") from error
    return whole


def every(asked: int | None, mesh: Mesh) -> int:
    """The steps between comparisons: by the option, or by default for the mesh."""
    if asked is not None:
        return asked
    return USUAL if mesh.unlike else 0


def outputs(manifest: Manifest, count: int) -> list[TensorSpec]:
    """The results of a run of `count` steps: losses, parameters and state."""
    dtype = next(t.dtype for t in manifest.function("grad").results if t.role == "loss")
    losses = TensorSpec(name=LOSSES, role="loss", shape=(count,), dtype=dtype)
    return [losses, *kept(manifest)]


def joined(
    mesh: Mesh,
    workers: int,
    specs: Mapping[str, TensorSpec],
    parts: Sequence[Mapping[str, NDArray]],
) -> list[NDArray]:
    """The results of all workers' members as whole tensors, by key.

    The losses of several workers are [worker, step]. All workers must have the same
    parameters, which is checked; the optimizer's state, which is their own, is the
    first worker's.
    """
    first = joined_results(mesh, specs, parts[: mesh.size])
    if workers == 1:
        return first
    shared = ("param", MODEL_STATE)
    alike = {key: spec for key, spec in specs.items() if spec.role in shared}
    joined_results(mesh.times(workers), alike, parts)
    losses = {key: spec for key, spec in specs.items() if spec.role == "loss"}
    each = [
        joined_results(mesh, losses, parts[i : i + mesh.size])
        for i in range(0, len(parts), mesh.size)
    ]
    by_key = dict(zip(specs, first, strict=True))
    stacked = map(np.stack, zip(*each, strict=True))
    return list((by_key | dict(zip(losses, stacked, strict=True))).values())
