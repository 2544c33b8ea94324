"""pcp-compile: a model becomes a bundle with one compiled module per target.

pcp-compile model.mlir --target cpu:host --optimizer 'adamw{lr=6e-4}'
pcp-compile model.mlir --target sm_90a
pcp-compile model.mlir --cluster cluster.json
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pcp.bundle import Bundle
from pcp.compiler import driver, emission, partitioned
from pcp.compiler.options import (
    DEFAULT_ALGORITHM,
    DEFAULT_BUCKET_BYTES,
    DEFAULT_OPT_LEVEL,
    DEFAULT_OPTIMIZER,
    DEFAULT_SCHEDULE,
    MODES,
    OPT_LEVELS,
    SCHEDULES,
    TIMEOUT_S,
    WIRES,
)
from pcp.compiler.options import CompileOptions as Options
from pcp.compiler.targets import Target, find
from pcp.dialect.bindings import ir
from pcp.dialect.context import read
from pcp.errors import UsageError
from pcp.passes.overlap_collectives import usual_inflight
from pcp.tools.cache_folder import cache_folder
from pcp.tools.command import Parser, run
from pcp.tools.signals import in_order

PROG = "pcp-compile"
ELASTIC = ("workers=elastic", "workers=-1")  # what training has anyway
SUFFIXES = {"bundle": "pcp", "vmfb": "vmfb", "mlir": "mlir"}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, in_order(_main), argv)


def _main(argv: Sequence[str]) -> int:
    flags = _parser().parse_args(argv)
    options = _options(flags)
    targets = [find(name) for name in options.targets]  # before the slow part
    if flags.emit != "bundle" and len(targets) > 1:
        raise UsageError(f"--emit {flags.emit} writes one target, not {len(targets)}")
    named = options.targets if flags.target else ()
    output = Path(flags.output or output_name(flags.model, named, flags.emit))
    module = read(flags.model)
    if flags.emit == "mlir":
        _write(output, _text(module, options, targets).encode())
        print(f"wrote {output}")
        return 0
    bundle = driver.compile(module, options)
    if flags.emit == "vmfb":
        _write(output, bundle.module())
    else:
        bundle.write(output)
    print(_summary(bundle, output))
    return 0


def _text(module: ir.Module, options: Options, targets: Sequence[Target]) -> str:
    """What IREE would be given; for a mesh, the programs of all devices."""
    if partitioned.is_wanted(module, options):
        program, _ = driver.lower_partitioned(module, options)
        return str(program.module)
    program = driver.lower(module, options)
    return emission.target_text(program.module, targets[0]).plain


# --- the command line ---


def _parser() -> Parser:
    about = (__doc__ or "").strip().splitlines()
    parser = Parser(prog=PROG, description=about[0], example="\n  ".join(about[2:]))
    add = parser.add_argument
    add("model", metavar="MODEL.mlir", help="StableHLO, as text or bytecode")
    add(
        "--target",
        action="append",
        default=[],
        help="cpu, cpu:host, cpu:<llvm cpu>, sm_90a, gfx942, vulkan, metal, ...; "
        "say it again for more",
    )
    add("-o", dest="output", metavar="OUT", help="default: MODEL.TARGET.pcp here")
    add("--mode", choices=MODES, help="default: train if there is a scalar loss")
    add("--optimizer", help=f"for training; default {DEFAULT_OPTIMIZER}")
    add("--algorithm", help=f"between workers; default {DEFAULT_ALGORITHM}")
    add("--mesh", help="one program for each member: dp=4,tp=2")
    add("--split", help="how members share an axis, a number for each: dp=5,2,1")
    help_ = "devices and links, .json or .mlir: a plan, or with --mesh its shares"
    add("--cluster", metavar="FILE", type=Path, help=help_)
    add("--sharding", metavar="auto|none|FILE", help="how tensors lie; default auto")
    add("--zero", type=int, choices=(1, 2, 3), default=0, help="ZeRO stage along dp")
    add("--microbatches", type=int, metavar="N", help="over pp=S: default S")
    help_ = f"over pp=S: default {DEFAULT_SCHEDULE}"
    add("--schedule", choices=SCHEDULES, help=help_)
    add("--tied", action="store_true", help="two stages may use one parameter")
    limit = DEFAULT_BUCKET_BYTES
    help_ = f"reductions travel together up to N bytes, 0 each alone; default {limit}"
    add("--bucket-bytes", type=int, metavar="N", default=limit, help=help_)
    usual = f"default {usual_inflight(0)}, {usual_inflight(3)} with --zero 3"
    help_ = f"collectives under way behind the work, 0 none; {usual}"
    add("--inflight", type=int, metavar="N", help=help_)
    add("--wire", choices=WIRES, help="large floats travel between devices as this")
    add("--emit", choices=tuple(SUFFIXES), default="bundle")
    add("--entry", default="main", help="the function to compile; default main")
    add("--keep-ir", metavar="DIR", type=Path, help="IR after each step")
    add("--opt-level", choices=OPT_LEVELS, default=DEFAULT_OPT_LEVEL, help="IREE's")
    add("--jobs", type=int, metavar="N", help="target compilers at once")
    add("--cache", metavar="DIR|off", help="default: $PCP_CACHE or the user's cache")
    add("--timeout", type=float, default=TIMEOUT_S, help="seconds for one target")
    add("-q", "--quiet", action="store_true", help="only errors and the result")
    return parser


def _options(flags: argparse.Namespace) -> Options:
    targets = [name for text in flags.target for name in text.split(",") if name]
    if not targets and not flags.cluster:
        raise UsageError("say what to compile for: --target cpu, or --cluster FILE")
    return Options(
        targets=tuple(dict.fromkeys(targets)) or ("cpu",),
        mode=flags.mode,
        optimizer=flags.optimizer,
        algorithm=flags.algorithm,
        entry=flags.entry,
        jobs=flags.jobs,
        cache=cache_folder(flags.cache),
        keep_ir=flags.keep_ir,
        timeout=flags.timeout,
        opt_level=flags.opt_level,
        source=flags.model,
        mesh=None if flags.mesh in ELASTIC else flags.mesh,
        split=flags.split,
        cluster=flags.cluster,
        sharding=flags.sharding,
        zero=flags.zero,
        microbatches=flags.microbatches,
        schedule=flags.schedule,
        tied=flags.tied,
        bucket_bytes=flags.bucket_bytes,
        inflight=flags.inflight,
        wire=flags.wire,
        report=_quiet if flags.quiet else _say,
    )


# --- what comes out ---


def output_name(model: str, targets: Sequence[str], emit: str = "bundle") -> str:
    """`model.sm_90a.pcp` for one target, `model.pcp` for several."""
    stem = Path(model).stem
    middle = f".{find(targets[0]).file_name}" if len(targets) == 1 else ""
    return f"{stem}{middle}.{SUFFIXES[emit]}"


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _summary(bundle: Bundle, output: Path) -> str:
    names = ", ".join(bundle.manifest.functions)
    size = output.stat().st_size
    return f"wrote {output} ({size} bytes; {bundle.manifest.mode}: {names})"


def _say(line: str) -> None:
    print(f"{PROG}: {line}", flush=True)


def _quiet(_: str) -> None:
    """Say nothing."""


if __name__ == "__main__":
    raise SystemExit(main())
