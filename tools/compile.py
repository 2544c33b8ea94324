"""pcp-compile: a model becomes a bundle with one compiled module per target.

pcp-compile model.mlir --target cpu:host --optimizer 'adamw{lr=6e-4}'
pcp-compile model.mlir --target sm_90a
pcp-compile model.mlir --cluster cluster.json
pcp-compile --hf DIR --target cpu
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pcp import whole_file
from pcp.compiler.options import (
    DEFAULT_ALGORITHM,
    DEFAULT_BUCKET_BYTES,
    DEFAULT_OPT_LEVEL,
    DEFAULT_OPTIMIZER,
    DEFAULT_SCHEDULE,
    KERNELS,
    LAYERS,
    MODES,
    OPT_LEVELS,
    SCHEDULES,
    TIMEOUT_S,
    WIRES,
)
from pcp.compiler.options import CompileOptions as Options
from pcp.errors import UsageError
from pcp.signing import BUNDLE
from pcp.tools import kept_bundle
from pcp.tools.kept_bundle import Kept
from pcp.tools.support import hf_training
from pcp.tools.support.cache_folder import cache_folder
from pcp.tools.support.command import Parser, run
from pcp.tools.support.protection import add_sign_flag, signer
from pcp.tools.support.signals import in_order

PROG = "pcp-compile"
EMITTED = ("bundle", "vmfb", "mlir")


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, in_order(_main), argv)


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    options = _options(flags)
    place = kept_bundle.of(flags, options)
    if place is not None and (kept := place.get()) is not None:
        print(_again(kept, flags, options))
        return 0
    from pcp.tools import extension  # --help needs no compiler, nor does what is kept
    from pcp.tools.support.compile_job import compile_file

    extension.load_all(flags.load)
    print(compile_file(flags, options, place))
    return 0


def _again(kept: Kept, flags: argparse.Namespace, options: Options) -> str:
    """Write what was compiled before; what was decided then is told again."""
    for line in kept.said:
        options.report(line)
    by, content = signer(flags), kept.content
    output = Path(flags.output or kept.output)
    options.tell_time(f"the bundle is from the cache, {len(content)} bytes")
    if by is None:
        output.parent.mkdir(parents=True, exist_ok=True)
        with whole_file.replacing(output, durable=True) as file:
            file.write(content)
    else:
        from pcp.bundle import Bundle

        bundle = Bundle.from_bytes(content, source="the cache")
        bundle.signed(by.sign(BUNDLE, bundle.digest)).write(output)
    return kept_bundle.summary(kept, output)


# --- the command line ---


def parser() -> Parser:
    """Its flags."""
    about = (__doc__ or "").strip().splitlines()
    parser = Parser(prog=PROG, description=about[0], example="\n  ".join(about[2:]))
    add_program_flags(parser)
    add = parser.add_argument
    add("-o", dest="output", metavar="OUT", help="default: MODEL.TARGET.pcp here")
    add("--emit", choices=EMITTED, default="bundle")
    add("--keep-ir", metavar="DIR", type=Path, help="IR after each step")
    help_ = "pcp's own code for products, or IREE's alone; default own"
    add("--kernels", choices=KERNELS, default="own", help=help_)
    help_ = "how products are computed on its target, of `pcp tune`"
    add("--tuning", metavar="FILE", type=Path, help=help_)
    add("--opt-level", choices=OPT_LEVELS, default=DEFAULT_OPT_LEVEL, help="IREE's")
    add("--jobs", type=int, metavar="N", help="target compilers at once")
    add("--cache", metavar="DIR|off", help="default: $PCP_CACHE or the user's cache")
    add("--timeout", type=float, default=TIMEOUT_S, help="seconds for one target")
    add_sign_flag(parser)
    add("-q", "--quiet", action="store_true", help="only errors and the result")
    return parser


def add_program_flags(parser: Parser) -> None:
    """The flags that say which program it is, of commands that compile one."""
    add = parser.add_argument
    help_ = "StableHLO, as text or bytecode"
    add("model", nargs="?", metavar="MODEL.mlir", help=help_)
    hf_training.add_flags(parser)
    add(
        "--target",
        action="append",
        default=[],
        help="cpu, cpu:host, cpu:<llvm cpu>, sm_90a, gfx942, vulkan, metal, ...; "
        "say it again for more; over a mesh one for all members, or one for each",
    )
    add("--mode", choices=MODES, help="default: train if there is a scalar loss")
    add("--optimizer", help=f"for training; default {DEFAULT_OPTIMIZER}")
    add("--algorithm", help=f"between workers; default {DEFAULT_ALGORITHM}")
    help_ = "one program for each member: dp=4,tp=2; workers=N trains N of them"
    add("--mesh", help=help_)
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
    help_ = "collectives under way behind the work, 0 none; default 4, 2 with --zero 3"
    add("--inflight", type=int, metavar="N", help=help_)
    add("--wire", choices=WIRES, help="large floats travel between devices as this")
    help_ = "types: params=f32,compute=bf16,reduce=f32; default all f32"
    add("--precision", metavar="POLICY", help=help_)
    help_ = "of the one device, as 16GiB: values are computed again until a step fits"
    add("--memory", metavar="BYTES", help=help_)
    help_ = "equal layers as a loop, which compiles faster; default unrolled"
    add("--layers", choices=LAYERS, default="unrolled", help=help_)
    help_ = "train small products beside a frozen model: r=8,targets=*.q_proj.weight"
    add("--lora", metavar="OPTIONS", help=help_)
    help_ = "parameters that stay, by patterns of names: *.embed*|*.norm*"
    add("--freeze", metavar="NAMES", help=help_)
    help_ = "keep an average of the parameters that decays so, as 0.999"
    add("--ema", type=float, default=0.0, metavar="DECAY", help=help_)
    add("--entry", default="main", help="the function to compile; default main")
    help_ = "an extension: optimizers, algorithms, rules, passes, ops; again for more"
    add("--load", action="append", default=[], metavar="FILE.py", help=help_)


def program_options(flags: argparse.Namespace) -> Options:
    """What `add_program_flags` says."""
    if hf_training.requested(flags) is None and flags.model is None:
        raise UsageError("say what to compile: MODEL.mlir, or --hf DIR")
    targets = [name for text in flags.target for name in text.split(",") if name]
    if not targets and not flags.cluster:
        raise UsageError("say what to compile for: --target cpu, or --cluster FILE")
    return Options(
        targets=tuple(targets) or None,
        mode=flags.mode,
        optimizer=flags.optimizer,
        algorithm=flags.algorithm,
        entry=flags.entry,
        source=flags.model or flags.hf,
        mesh=flags.mesh,
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
        memory=flags.memory,
        precision=flags.precision,
        layers=flags.layers,
        lora=flags.lora,
        freeze=flags.freeze,
        ema=flags.ema,
    )


def _options(flags: argparse.Namespace) -> Options:
    return replace(
        program_options(flags),
        jobs=flags.jobs,
        cache=cache_folder(flags.cache),
        keep_ir=flags.keep_ir,
        timeout=flags.timeout,
        kernels=flags.kernels,
        opt_level=flags.opt_level,
        tuning=flags.tuning,
        report=_quiet if flags.quiet else _say,
    )


# --- what is said ---


def _say(line: str) -> None:
    # One write: targets are compiled side by side, and say so from threads.
    print(f"{PROG}: {line}\n", end="", flush=True)


def _quiet(_: str) -> None:
    """Say nothing."""


if __name__ == "__main__":
    raise SystemExit(main())
