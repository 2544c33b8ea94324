"""pcp tune: measure how products of a model are computed fastest on this processor.

pcp tune model.mlir --target cpu:host
pcp-compile model.mlir --target cpu:host --tuning model.tuning.json
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pcp import whole_file
from pcp.errors import ConfigError, UsageError
from pcp.tools.compile import add_program_flags, program_options
from pcp.tools.support.command import Parser, run

if TYPE_CHECKING:
    from pcp.tuning_table import TunedProduct, TuningTable

PROG = "pcp tune"
DEFAULT_TARGET = "cpu:host"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    about = (__doc__ or "").strip().splitlines()
    parser = Parser(prog=PROG, description=about[0], example="\n  ".join(about[2:]))
    add_program_flags(parser)
    add = parser.add_argument
    help_ = "default: MODEL.tuning.json here; rows of other products in it stay"
    add("-o", dest="output", metavar="FILE", type=Path, help=help_)
    help_ = "products measured, the largest first (default: 24)"
    add("--top", type=int, default=24, metavar="N", help=help_)
    return parser


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    if flags.top < 1:
        raise UsageError("--top is larger than 0")
    if not flags.target and not flags.cluster:
        flags.target = [DEFAULT_TARGET]
    options = program_options(flags)
    # --help needs no compiler
    from pcp.passes.kernels.processors import host_name
    from pcp.tools import extension
    from pcp.tools.support.compile_job import read_program
    from pcp.tools.tune import search
    from pcp.tuning_table import TuningTable

    extension.load_all(flags.load)
    output = flags.output or Path(f"{Path(options.source).stem}.tuning.json")
    older = TuningTable.read(output) if output.exists() else None
    step, shapes = search.products(read_program(flags, options), options)
    if older is not None and (why := older.unfit(step.target.name, host_name())):
        raise ConfigError(f"{output}: {why}; say another file with -o")
    if not shapes:
        raise ConfigError(f"{options.source}: it has no products of f32 to tune")
    found = search.tune(shapes[: flags.top], step, _say)
    table = found if older is None else found.merged(older)
    with whole_file.replacing(output) as file:
        file.write(table.text().encode())
    for line in _text(found, len(shapes) - len(found.products)):
        print(line)
    print(f"wrote {output}; use it by: pcp-compile ... --tuning {output}")
    return 0


def _text(table: "TuningTable", left: int) -> Iterator[str]:
    """A row a product: GFLOP/s of a thread with the table and without."""
    yield f"{'product':44}{'GFLOP/s':>9}{'untuned':>9}"
    for row in table.products:
        yield f"{_name(row):44}{row.gflops:9.1f}{row.untuned:9.1f}"
    if left:
        yield f"and {left} smaller products (--top N measures more)"


def _name(row: "TunedProduct") -> str:
    batch = f"{row.batch} of " if row.batch else ""
    return f"{row.form} {batch}{row.rows} x {row.depth} x {row.columns}"


def _say(line: str) -> None:
    print(f"{PROG}: {line}", flush=True)
