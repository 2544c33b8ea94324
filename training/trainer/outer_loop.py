"""Rounds of several workers without a shepherd: inner steps and the outer step.

    inner step x tau ─► outer_step(anchors, params, state, tokens) ─► params, anchors
         (each worker its batches)       over the axis "workers"

A worker may be spread over a mesh: each of its members makes the outer step on its
parts, with the members of other workers that hold the same parts. No worker may leave;
`pcp train` is for runs that survive a loss of workers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError
from pcp.manifest import Manifest, TensorSpec
from pcp.mesh import WORKERS, Mesh
from pcp.training.trainer import step_loop
from pcp.training.trainer.bundle_checks import plan_of
from pcp.training.trainer.program_state import SYNC
from pcp.training.trainer.replica_agreement import joined_results
from pcp.training.trainer.step_loop import MODEL_STATE, Arrays, Steps

STEP, EARLY, INIT = "outer_step", "outer_early", "outer_init"

LOSSES = "losses"


def workers_of(manifest: Manifest) -> int | None:
    """The number of workers that a bundle was compiled for; None: elastic."""
    counts = [m.axes[WORKERS] for m in manifest.mesh.values() if WORKERS in m.axes]
    return next((count for count in counts if count > 0), None)


def check(manifest: Manifest, workers: int, tau: int | None, count: int) -> None:
    """`UsageError` unless the steps are a number of whole rounds."""
    if (made := workers_of(manifest)) not in (None, workers):
        raise UsageError(
            f"--workers {workers}: the bundle is compiled for {made} workers; compile "
            "it with --mesh workers=elastic,..."
        )
    if tau is None:
        if workers > 1:
            raise UsageError(
                f"--workers {workers}: say how many steps a round has, --tau 10"
            )
        return
    if tau < 1:
        raise UsageError(f"--tau {tau}: at least one step")
    if count % tau:
        raise UsageError(f"--tau {tau}: rounds of {tau} steps do not make {count}")
    if STEP not in manifest.functions:
        raise UsageError(
            f"--tau {tau}: the bundle has no outer step; compile it with "
            "--algorithm diloco"
        )
    own, when = manifest.function(STEP).inputs_of("replica"), plan_of(manifest)
    if workers > 1 and when.synchronize == "never":
        raise UsageError(
            f"--workers {workers}: the bundle's algorithm is of one worker alone, and "
            "nothing joins several; leave --workers out"
        )
    if own or when.synchronize == "asynchronous":
        raise UsageError(
            f"--tau {tau}: its workers do not all meet at the end of a round; "
            "train with `pcp train`"
        )


class OuterLoop(Steps):
    """As `Steps`, with the outer step after each `tau` steps.

    All workers have equal weights. Between rounds all hold the same parameters.
    """

    def __init__(
        self,
        program: Any,
        whole: Manifest,
        mesh: Mesh | None = None,
        place: dict[str, int] | None = None,
        *,
        tau: int,
    ) -> None:
        super().__init__(program, whole, mesh, place)
        self._dtypes |= {
            t.key: t.dtype for function in self._own.values() for t in function.results
        }
        self._tau, self._count = tau, 0

    def start(self, seed: int, given: Arrays | None = None) -> None:
        """Set first values, and zeros as the outer algorithm's state."""
        super().start(seed, given)
        if INIT in self._own:
            for key, value in self._functions(INIT, self._values).items():
                self._values[key] = self._copy(value, key)
        self._begin_round()

    def step(self, batch: Arrays) -> np.ndarray:
        """Make one update, and the outer step where a round ends; returns the loss."""
        loss = super().step(batch)
        self._count += 1
        if self._count % self._tau == 0:
            self._end_round()
        return loss

    def _begin_round(self) -> None:
        """Copy the anchors, over which the steps write."""
        anchored = [key for key in self._values if key[0] in ("param", MODEL_STATE)]
        for key in anchored:
            value = self._copy(self._values[key], key)
            self._values["anchor", key[1]] = value

    def _end_round(self) -> None:
        tokens = {("tokens", "tokens"): np.float32(self._tau)}
        got = self._functions(EARLY, self._values) if EARLY in self._own else {}
        new = self._functions(STEP, self._values | tokens | got)
        if SYNC in self._own:
            new |= self._functions(SYNC, self._values | tokens)
        self._values |= new
        self._begin_round()

    def _copy(self, value: Any, key: tuple[str, str]) -> Any:
        """A copy in its own buffer."""
        return self._functions.program.to_device(np.array(value), self._dtypes[key])


def outputs(manifest: Manifest, count: int) -> list[TensorSpec]:
    """The results of a run of `count` steps: losses, parameters and state."""
    dtype = next(t.dtype for t in manifest.function("grad").results if t.role == "loss")
    losses = TensorSpec(name=LOSSES, role="loss", shape=(count,), dtype=dtype)
    return [losses, *step_loop.kept(manifest)]


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
