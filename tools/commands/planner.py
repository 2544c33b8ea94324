"""`pcp plan`: which devices, mesh and layouts suit a model, without compiling it.

    pcp plan model.mlir --cluster cluster.json

Prints what was judged, the fastest first: predicted time of a step, how much of it
is waiting for others, the bytes that a member sends and holds at most. Plans have the
axes pp, dp and tp; where stages are impossible it says at which op and why. `cut=0,2`
are the numbers of the groups of parameters that tp cuts: --json has their names, and
the plan taken says them below the table.
`pcp-compile model.mlir --cluster cluster.json` takes the plan marked `taken`. --json
says of every plan with which flags pcp-compile makes it.
"""

from collections.abc import Sequence
from pathlib import Path

from pcp import strict_json
from pcp.compiler.options import MODES, CompileOptions
from pcp.errors import UsageError
from pcp.tools.support.command import Parser, run
from pcp.tools.support.progress import doing
from pcp.tools.support.signals import in_order

PROG = "pcp plan"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, in_order(_main), argv)


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    from pcp.compiler import driver
    from pcp.dialect.context import read
    from pcp.passes.planning import plan

    options = CompileOptions(
        mode=flags.mode,
        optimizer=flags.optimizer,
        entry=flags.entry,
        source=flags.model,
        cluster=flags.cluster,
        tied=flags.tied,
    )
    if flags.keep < 0:
        raise UsageError(f"--keep {flags.keep}: at least 1, or 0 for what is quick")
    axes = plan.parse_axes(flags.mesh)
    wanted = {"zero": flags.zero, "axes": axes, "keep": flags.keep}
    model = read(flags.model)
    with doing(f"planning for {flags.cluster}", Path(flags.model).stat().st_size):
        choice = driver.plan(model, options, **wanted)
    print("\n".join(choice.lines()))
    if flags.json:
        flags.json.write_text(strict_json.dumps(choice.to_dict(), indent=1))


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description=__doc__,
        example="pcp plan model.mlir --cluster cluster.json",
    )
    add = parser.add_argument
    add("model", metavar="MODEL.mlir")
    add("--cluster", metavar="FILE", type=Path, required=True, help=".json or .mlir")
    add("--mode", choices=MODES, help="default: train if there is a scalar loss")
    add("--optimizer", help="for training")
    add("--entry", default="main", help="the function to plan for; default main")
    add("--mesh", default="", metavar="pp=2,dp=2", help="only plans on these axes")
    add("--tied", action="store_true", help="two stages may use one parameter")
    add("--json", type=Path, metavar="FILE", help="write all plans, with their flags")
    add("--zero", type=int, default=3, choices=(0, 1, 2, 3), help="the last ZeRO stage")
    add("--keep", type=int, default=0, metavar="N", help="judge the N most promising")
    return parser
