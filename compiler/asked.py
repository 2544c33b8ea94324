"""Which options cannot be together: one table, by what the program is.

A program is for one device, or spread: over a mesh that was asked for, over one that is
chosen for a cluster, in pipeline stages or without.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pcp.compiler.mesh_option import parse_mesh
from pcp.compiler.options import CompileOptions
from pcp.compiler.placing import PIPELINE
from pcp.errors import ConfigError
from pcp.passes.training.policy import DEFAULT


def _cutting(options: CompileOptions) -> set[str]:
    """The axes of the mesh that cut tensors."""
    return set(parse_mesh(options.mesh).axes) - {PIPELINE} if options.mesh else set()


_ASKED: dict[str, Callable[[CompileOptions], bool]] = {
    "--sharding": lambda o: o.sharding not in (None, "auto", "none"),
    "--sharding none": lambda o: o.sharding == "none",
    "--zero": lambda o: bool(o.zero),
    "--split": lambda o: bool(o.split),
    "--mesh that cuts": lambda o: bool(_cutting(o)),
    "--microbatches": lambda o: o.microbatches is not None,
    "--schedule": lambda o: o.schedule is not None,
    "--tied": lambda o: o.tied,
    "--wire": lambda o: o.wire is not None,
    "--algorithm": lambda o: o.synchronizes_in_rounds,
    "batch": lambda o: bool(o.batch),
    "--memory": lambda o: o.memory is not None,
    "--precision": lambda o: o.policy != DEFAULT,
    "--freeze": lambda o: bool(o.freeze),
    "--lora": lambda o: bool(o.lora),
    "--layers": lambda o: o.layers == "rolled",
    "--precision with a loss scale": lambda o: o.policy.scales,
}


@dataclass(frozen=True)
class Refusal:
    """Options that a program of some kind does not take, and what to do instead."""

    flags: tuple[str, ...]
    why: str

    def check(self, options: CompileOptions) -> None:
        """`ConfigError` if one of them is asked for."""
        for flag in self.flags:
            if _ASKED[flag](options):
                name = flag.partition(" ")[0]
                raise ConfigError(f"{options.source}: {name} {self.why}")


ONE_DEVICE = Refusal(
    ("--sharding", "--zero", "--microbatches", "--schedule", "--tied", "--wire"),
    "is for a program over several devices; say which, --mesh dp=2 or --cluster FILE, "
    "or leave it out",
)
PLANNED = Refusal(
    (
        "--sharding",
        "--sharding none",
        "--zero",
        "--split",
        "--microbatches",
        "--schedule",
        "--algorithm",
    ),
    "goes with --mesh; without a mesh the plan for the cluster decides this",
)
UNSTAGED = Refusal(
    ("--microbatches", "--schedule", "--tied"),
    "is for pipeline stages, and the mesh has none; say how many, --mesh pp=2, or "
    "leave it out",
)
#: Over stages alone a stage is whole.
STAGES_ALONE = Refusal(
    ("--zero", "--sharding"),
    "cuts what a stage holds, and over mesh axis pp alone a stage is whole; leave "
    "--zero and --sharding out, or add an axis: --mesh pp=2,dp=2",
)
#: A stage's tasks follow each other as the schedule says, and hold what that says.
STAGED_MEMORY = Refusal(
    ("--memory",),
    "is of a gradient that one function computes, and stages have tasks of their own; "
    "leave it out, or take more --microbatches, or --schedule 1f1b",
)
#: Its factor is state that the gradient takes, and stages have gradients of their own.
STAGED_SCALE = Refusal(
    ("--precision with a loss scale",),
    "scales the loss, and a program in stages does not; take compute=bf16, which needs "
    "no scale, or scale=none",
)
#: A `pcp.schedule` in the model says who does what, and when.
SCHEDULED = Refusal(
    (
        "--mesh that cuts",
        "--sharding",
        "--zero",
        "--split",
        "--microbatches",
        "--schedule",
        "--tied",
        "--algorithm",
        "--precision",
        "--lora",
        "--freeze",
    ),
    "is what the model's pcp.schedule decides; leave it out",
)
SPREAD = Refusal(
    ("batch", "--layers"),
    "is for one device: over a mesh gradients are not accumulated in the graph, and "
    "layers are no loop; leave it out, or leave the mesh out",
)
