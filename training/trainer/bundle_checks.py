"""Checks of a training bundle's manifest, and the training plan in it."""

from pcp.errors import BundleError
from pcp.manifest import Manifest, TensorSpec
from pcp.training.trainer import step_loop
from pcp.training_plan import TrainingPlan


def model_shapes(manifest: Manifest) -> list[tuple[int, ...]]:
    """Of parameters and frozen tensors: beside adapters the tables are frozen."""
    takes = manifest.function("grad").inputs
    return [t.shape for t in takes if t.role in ("param", "frozen")]


def data_inputs(manifest: Manifest) -> tuple[TensorSpec, ...]:
    """What the program takes of each batch, by name: its arguments of the role data."""
    return tuple(t for t in manifest.function("grad").inputs if t.role == "data")


def check_bundle(manifest: Manifest) -> None:
    """Refuse a bundle that a run with a shepherd cannot train."""
    step_loop.check(manifest)
    if manifest.programs:
        axes = manifest.partition_mesh().axes
        mesh = ",".join(f"{axis}={size}" for axis, size in axes.items())
        raise BundleError(
            f"the bundle's program is spread over {mesh}, and a worker of `pcp train` "
            "holds a whole one; train it with `pcp run --steps`, or compile it without "
            "--mesh"
        )
    manifest.function("eval")
    plan_of(manifest)


def plan_of(manifest: Manifest) -> TrainingPlan:
    """The training plan; `BundleError` where the program itself synchronises."""
    if manifest.training is None:
        raise BundleError(
            "the bundle has no training plan: a program that is spread over a mesh "
            "synchronises its own members; train it with `pcp run BUNDLE --steps K`"
        )
    return manifest.training
