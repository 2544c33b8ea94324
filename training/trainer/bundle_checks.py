"""Checks of a training bundle's manifest, and the training plan in it."""

from pcp.errors import BundleError
from pcp.manifest import Manifest
from pcp.training.trainer import step_loop
from pcp.training_plan import TrainingPlan


def batch_shape(manifest: Manifest) -> tuple[int, int]:
    """B and T of a model that takes token ids and targets, both `[B, T]`."""
    data = [t for t in manifest.function("grad").inputs if t.role == "data"]
    shapes = {tuple(t.shape) for t in data}
    if len(data) != 2 or len(shapes) != 1 or len(data[0].shape) != 2:
        found = ", ".join(f"{t.name}: {list(t.shape)}" for t in data) or "none"
        raise BundleError(
            "training needs a model with two data inputs, ids and targets, of one "
            f"shape [batch, block]; this one has {found}"
        )
    return data[0].shape[0], data[0].shape[1]


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
