"""Checks of a training bundle's manifest, and the training plan in it."""

from pcp.errors import BundleError, ConfigError, UsageError
from pcp.manifest import Manifest, TensorSpec
from pcp.mesh import WORKERS
from pcp.training.trainer import step_loop
from pcp.training_plan import Never, TrainingPlan

OUTER_STEP = "outer_step"


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
    check_islands(plan, axes)


def check_islands(plan: TrainingPlan, mesh: str) -> None:
    """Refuse an algorithm that islands of a mesh do not have."""
    exchanges = {
        "asynchronously": plan.synchronize == "asynchronous",
        "in pairs": plan.in_pairs,
        "beside the inner steps": plan.in_background,
    }
    for how in (how for how, so in exchanges.items() if so):
        raise ConfigError(
            f"mesh {mesh}: the algorithm exchanges {how}, which islands of several "
            "devices do not; take ddp, diloco, average or decoupled{own_clocks=false}, "
            "or leave the mesh out"
        )


def plan_of(manifest: Manifest) -> TrainingPlan:
    """The training plan; `BundleError` where the program itself synchronises."""
    if manifest.training is None:
        raise BundleError(
            "the bundle has no training plan: a program that is spread over a mesh "
            "synchronises its own members; train it with `pcp run BUNDLE --steps K`"
        )
    return manifest.training


def fixed_plan(manifest: Manifest, tau: int | None) -> TrainingPlan:
    """The plan of a fixed world: without rounds, steps without exchanges."""
    return Never() if tau is None else plan_of(manifest)


def workers_of(manifest: Manifest) -> int | None:
    """The number of workers that a bundle was compiled for; None: elastic."""
    counts = [m.axes[WORKERS] for m in manifest.mesh.values() if WORKERS in m.axes]
    return next((count for count in counts if count > 0), None)


def check_rounds(manifest: Manifest, workers: int, tau: int | None, count: int) -> None:
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
    if OUTER_STEP not in manifest.functions:
        raise UsageError(
            f"--tau {tau}: the bundle has no outer step; compile it with "
            "--algorithm diloco"
        )
    own, when = manifest.function(OUTER_STEP).inputs_of("replica"), plan_of(manifest)
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
