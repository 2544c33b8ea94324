"""`pcp launch`: a run on this machine, Ray, Slurm or Kubernetes."""

from collections.abc import Sequence

from pcp.tools.launchers import helm, kubernetes, local, ray, slurm
from pcp.tools.launchers.plan import LaunchPlan
from pcp.tools.support import backends
from pcp.tools.support.command import Parser, port_number, run
from pcp.tools.support.protection import add_insecure_flag, add_protection_flags

PROG = "pcp launch"
ENGINES = {
    "local": local,
    "ray": ray,
    "slurm": slurm,
    "kubernetes": kubernetes,
    "helm": helm,
}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Start a run where you say. local and ray train at once; slurm, "
        "kubernetes and helm write what sbatch, kubectl and helm take. A run that is "
        "there already is continued.",
        example="pcp launch experiment.json --on slurm --workers 32 --per-node 8 "
        "--backend cuda --target sm_90a -o run.sbatch",
    )
    add = parser.add_argument
    add("config", metavar="EXPERIMENT.json")
    add("--on", choices=ENGINES, default="local", help="default local")
    add("--workers", type=int, help="default: the experiment's")
    add("--backend", default="cpu", help=f"one of {', '.join(backends.BACKENDS)}")
    add("--target", help="what to compile for; default by backend")
    add("--name", help="of the job; default: the experiment file's")
    add("--run", metavar="DIR", help="the run's folder; default CHECKPOINT_DIR/NAME")
    add(
        "--port",
        type=port_number,
        default=0,
        help="the shepherd's, with ray or slurm; default: any free, or 8080",
    )
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="of slurm and kubernetes; default stdout. Of helm: the chart's folder",
    )
    add_insecure_flag(parser)
    add_protection_flags(parser)
    for engine in ENGINES.values():
        engine.flags(parser)
    return parser


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    return ENGINES[flags.on].launch(LaunchPlan.of(flags), flags)
