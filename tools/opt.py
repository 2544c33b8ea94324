"""pcp-opt: mlir-opt for StableHLO and pcp, with pcp's passes in the pipeline.

pcp-opt model.mlir --pcp-grad=func=main --cse
pcp-opt model.mlir --pass-pipeline='builtin.module(pcp-grad{func=main},cse)'
"""

import argparse
import io
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pcp.compiler import catalog
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.errors import PassError, UsageError, nearest
from pcp.passes.base import Pipeline, split_top_level
from pcp.tools.command import Parser, run
from pcp.tools.opt_job import PROG, SEPARATOR, Job

DIALECTS = (
    "affine arith bufferization builtin cf chlo complex func linalg math memref "
    "ml_program pcp quant scf shape sparse_tensor stablehlo tensor vhlo"
).split()


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def _main(argv: Sequence[str]) -> int:
    options, words = _parser().parse_known_args([_two_dashes(word) for word in argv])
    if options.list_passes:
        return _print_table(catalog.summaries())
    if options.show_dialects:
        return _print_table((name, "") for name in _dialects())
    pipeline = _pipeline(options.pass_pipeline, words)
    job = Job(options, pipeline)
    modules = job.process(_read(options.file))
    if modules and (options.output == "-" or not job.failures):
        _write(options, modules)
    if job.timing:
        print(job.timing.table(), file=sys.stderr)
    return min(job.failures, 1)


# --- the command line ---


VERIFY_EACH = "verify after each pass (default: true)"
SWITCHES = {
    "split-input-file": f"work on each part between lines that say {SEPARATOR}",
    "verify-diagnostics": "check errors against // expected-error {{...}} comments",
    "mlir-print-ir-before-all": "print the IR before each pass",
    "mlir-print-ir-after-all": "print the IR after each pass",
    "mlir-print-ir-after-change": "print the IR after passes that changed it",
    "mlir-print-ir-after-failure": "print the IR that a failed pass left",
    "mlir-print-op-generic": "print ops in their generic form",
    "mlir-print-debuginfo": "print locations",
    "mlir-timing": "say how long each pass took",
    "emit-bytecode": "write bytecode",
    "allow-unregistered-dialect": "let ops of unknown dialects through",
    "list-passes": "print the known passes and stop",
    "show-dialects": "print the known dialects and stop",
}


def _parser() -> Parser:
    about = (__doc__ or "").strip().splitlines()
    parser = Parser(
        prog=PROG,
        description=about[0],
        example=about[-1].strip(),
        usage="%(prog)s [FILE|-] [-o OUT] [--<pass>[=key=value,...]]... [options]",
    )
    add = parser.add_argument
    add("file", nargs="?", default="-", help="MLIR text or bytecode; - is stdin")
    add("-o", dest="output", default="-", metavar="OUT", help="where to write")
    add("--pass-pipeline", metavar="TEXT", help="builtin.module(pass{key=value},...)")
    add("--verify-each", type=_bool, default=True, metavar="BOOL", help=VERIFY_EACH)
    for when in ("before", "after"):
        text = f"print the IR {when} these passes"
        names = {"type": _names, "default": [], "metavar": "PASS,..."}
        add(f"--mlir-print-ir-{when}", help=text, **names)
    for name, text in SWITCHES.items():
        add(f"--{name}", action="store_true", help=text)
    text = "leave out the contents of larger constants"
    add("--mlir-elide-elementsattrs-if-larger", type=int, metavar="N", help=text)
    return parser


def _two_dashes(word: str) -> str:
    """LLVM's tools take `-cse` for `--cse`, and `--verify-each` alone for true."""
    word = "-" + word if re.match(r"-[A-Za-z][\w-]", word) else word
    return word + "=true" if word == "--verify-each" else word


def _bool(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    if text not in values:
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return values[text]


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _pipeline(text: str | None, words: Sequence[str]) -> Pipeline:
    """The passes of `--pass-pipeline`, or those given as flags, in their order."""
    flags = [_flag(word) for word in words]
    if text is not None and flags:
        raise UsageError("--pass-pipeline and pass flags cannot both be given")
    if text is not None:
        return catalog.pipeline(text)
    try:
        return catalog.pipeline(",".join(catalog.step_text(*flag) for flag in flags))
    except PassError as error:
        raise UsageError(str(error)) from error


def _flag(word: str) -> tuple[str, str]:
    """`--name=a=1,b=2` as the pass's name and `a=1 b=2`."""
    if not word.startswith("--"):
        raise UsageError(f"unexpected argument {word!r}: one input file only")
    name, _, options = word[2:].partition("=")
    if name not in catalog.PASSES and not name.startswith("pcp-"):
        options_of_ours = list(_parser()._option_string_actions)
        guess = nearest(f"--{name}", options_of_ours)
        if guess and name not in catalog.MLIR_PASSES:
            raise UsageError(f"no pass or flag {word!r}.{guess}")
    return name, flag_options(options)


def flag_options(text: str) -> str:
    """Pass options with commas or spaces between them, as a pipeline writes them.

    A part without `=` belongs to the value before it: `wrt=0,2,name=g` is
    `wrt=0,2 name=g`.
    """
    options: list[str] = []
    for part in [p for s in split_top_level(text, " ") for p in split_top_level(s)]:
        if "=" in part or not options or "=" not in options[-1]:
            options.append(part)
        else:
            options[-1] += f",{part}"
    return " ".join(options)


# --- what goes in and out ---


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    return Path(path).read_bytes()


def _write(options: argparse.Namespace, modules: Sequence[ir.Module]) -> None:
    content = _content(options, modules)
    if options.output != "-":
        Path(options.output).write_bytes(content)
        return
    if options.emit_bytecode and sys.stdout.isatty():
        raise UsageError("bytecode to a terminal: use -o OUT or redirect the output")
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()


def _content(options: argparse.Namespace, modules: Sequence[ir.Module]) -> bytes:
    if not options.emit_bytecode:
        texts = [_text(options, module) for module in modules]
        return f"{SEPARATOR}\n".join(texts).encode()
    if len(modules) > 1:
        raise UsageError("--emit-bytecode writes one module: do not split the input")
    buffer = io.BytesIO()
    for module in modules:
        module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def _text(options: argparse.Namespace, module: ir.Module) -> str:
    text = module.operation.get_asm(
        print_generic_op_form=options.mlir_print_op_generic,
        enable_debug_info=options.mlir_print_debuginfo,
        large_elements_limit=options.mlir_elide_elementsattrs_if_larger,
    )
    return text.rstrip("\n") + "\n"


def _print_table(rows: Iterable[tuple[str, str]]) -> int:
    for name, text in rows:
        print(f"{name:36}{text}".rstrip())
    return 0


def _dialects() -> list[str]:
    context = make_context()
    loaded = []
    for name in DIALECTS:
        try:
            context.get_dialect_descriptor(name)
        except ValueError:
            continue
        loaded.append(name)
    return loaded


if __name__ == "__main__":
    sys.exit(main())
