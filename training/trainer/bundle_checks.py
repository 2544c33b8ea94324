"""Checks of a training bundle's manifest, and the training plan in it."""

from pcp.errors import BundleError
from pcp.manifest import Manifest, TensorSpec
from pcp.mesh import WORKERS
from pcp.training.trainer import step_loop
from pcp.training_plan import TrainingPlan


def model_shapes(manifest: Manifest) -> list[tuple[int, ...]]:
    """The shapes of parameters and frozen tensors: adapters have frozen tables."""
    takes = manifest.function("grad").inputs
    return [t.shape for t in takes if t.role in ("param", "frozen")]


def data_inputs(manifest: Manifest) -> tuple[TensorSpec, ...]:
    """The program's inputs of each batch, by name: its arguments of the role data."""
    return tuple(t for t in manifest.function("grad").inputs if t.role == "data")


def check_bundle(manifest: Manifest) -> None:
    """Refuse a bundle that a run with a shepherd cannot train."""
    step_loop.check(manifest)
    manifest.function("eval")
    plan = plan_of(manifest)
    if manifest.programs:
        _check_island(manifest, plan)


def _check_island(manifest: Manifest, plan: TrainingPlan) -> None:
    """Refuse a bundle that the ranks of an island cannot train together."""
    mesh = manifest.partition_mesh()
    axes = ",".join(f"{axis}={size}" for axis, size in mesh.axes.items())
    joined = {axis for m in manifest.mesh.values() if not m.devices for axis in m.axes}
    if WORKERS not in joined:
        raise BundleError(
            f"the bundle's program is spread over {axes}, and nothing joins it to "
            f"others; compile it with --mesh island=-1,{axes}, or train it with "
            "`pcp run --steps`"
        )
    if plan.synchronize == "asynchronous" or plan.in_pairs or plan.in_background:
        raise BundleError(
            f"the bundle's program is spread over {axes}, and its algorithm exchanges "
            "in pairs, beside the inner steps or asynchronously, which islands do not; "
            "take ddp, diloco or average, or compile it without --mesh"
        )


def plan_of(manifest: Manifest) -> TrainingPlan:
    """The training plan; `BundleError` where the program itself synchronises."""
    if manifest.training is None:
        raise BundleError(
            "the bundle has no training plan: a program that is spread over a mesh "
            "synchronises its own members; train it with `pcp run BUNDLE --steps K`"
        )
    return manifest.training
