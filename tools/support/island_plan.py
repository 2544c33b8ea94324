"""An island's mesh, chosen for a described cluster: the experiment's key `cluster`.

The planner judges what one island may be (`passes/planning`): the devices that it
takes, the mesh over them, the ZeRO stage and how every parameter lies. Taken is what
lets all islands for which the cluster has devices train most in a second, where one
fits in the memory of the smallest device. Layouts are written beside the runs, as a
file that `sharding` names.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pcp import strict_json
from pcp.bundle import sha256
from pcp.errors import ConfigError
from pcp.tools.support.model_check import read_model
from pcp.training.config.experiment import Experiment

if TYPE_CHECKING:
    from pcp.passes.planning.choice import Choice
    from pcp.passes.planning.evaluation import Judged

LAYOUTS = "layouts"
"""Files of layouts, in the folder of the runs."""


def planned(
    experiment: Experiment, options: Any, report: Callable[[str], None]
) -> Experiment:
    """The experiment with the mesh that was chosen, if it names a cluster.

    `options` are those of its compilation. A mesh that it has already is judged alone.
    `PassError` where nothing fits, with the least memory that a device would need.
    """
    if experiment.cluster is None:
        return experiment
    if experiment.model_path.endswith(".pcp"):
        raise ConfigError(
            f"cluster {experiment.cluster}: {experiment.model_path} is compiled "
            "already; name the model, or leave the cluster out"
        )
    from pcp.compiler import driver

    choice = driver.plan(
        read_model(experiment.model_path),
        options,
        axes=experiment.axes or None,
        islands=True,
    )
    taken, count = _best(choice), len(choice.devices)
    plan = taken.candidate
    for line in _told(choice, taken):
        report(line)
    layouts = choice.sharding(plan) if experiment.sharding is None else {}
    alone = len(plan.devices) == 1
    axes = {axis: n for axis, n in plan.axes.items() if n > 1}
    changes = {
        "mesh": None if alone else ",".join(f"{a}={n}" for a, n in axes.items()),
        "zero": plan.zero if plan.dp > 1 else 0,
        "microbatches": plan.microbatches if plan.pp > 1 else None,
        "workers": count // len(plan.devices),
    }
    if layouts:
        changes["sharding"] = _written(experiment, layouts)
    return experiment.model_copy(update=changes)


def _best(choice: "Choice") -> "Judged":
    """The fastest that fits, its stages in the order that islands have."""
    from pcp.compiler.options import DEFAULT_SCHEDULE

    orders = ("", DEFAULT_SCHEDULE)
    fit = [j for j in choice.judged if j.fits and j.candidate.schedule in orders]
    if not fit:
        raise ConfigError(
            f"no plan with stages in the order {DEFAULT_SCHEDULE} fits in memory, and "
            "islands have no other; `pcp plan` lists them all"
        )
    return fit[0]


def _told(choice: "Choice", taken: "Judged") -> list[str]:
    """What was taken, and what it was weighed against."""
    from pcp.passes.planning.choice import mib

    plan, others = taken.candidate, len(choice.judged) - 1
    islands = len(choice.devices) // len(plan.devices)
    made = f"{islands} islands of {plan}" if len(plan.devices) > 1 else "whole workers"
    lines = [
        f"planned for {len(choice.devices)} devices: {made}, "
        f"{1e3 * taken.cost.seconds:.1f} ms a step, holding {mib(taken.memory)} of the "
        f"{mib(taken.room)} of the smallest; {others} other plans judged"
    ]
    if cut := choice.describe(plan):
        lines.append(f"cut along tp: {cut}")
    return lines


def _written(experiment: Experiment, layouts: dict[str, Any]) -> str:
    """The file of these layouts; the same ones are written once."""
    content = strict_json.dumps({"tensors": layouts}).encode()
    folder = Path(experiment.checkpoint_dir) / LAYOUTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{sha256(content)[:16]}.json"
    path.write_bytes(content)
    return str(path)
