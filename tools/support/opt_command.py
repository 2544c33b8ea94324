"""What pcp-opt does for its command line: which passes, what goes in and out."""

import argparse
import io
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from pcp.compiler import catalog
from pcp.dialect import loading
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.errors import PassError, UsageError, nearest
from pcp.passes.core.base import Pipeline, split_top_level
from pcp.tools.support.expected import SEPARATOR
from pcp.tools.support.opt_job import Job

DIALECTS = (
    "affine arith bufferization builtin cf chlo complex func linalg math memref "
    "ml_program pcp quant scf shape sparse_tensor stablehlo tensor vhlo"
).split()


def work(
    options: argparse.Namespace, words: Sequence[str], own: Collection[str]
) -> int:
    """Run the passes that `options` and `words` name; `own` are pcp-opt's flags."""
    job = Job(options, _pipeline(options.pass_pipeline, words, own))
    modules = job.process(_read(options.file))
    if modules and (options.output == "-" or not job.failures):
        _write(options, modules)
    if job.timing:
        print(job.timing.table(), file=sys.stderr)
    return min(job.failures, 1)


def print_passes() -> int:
    """The known passes, a line each."""
    return _print_table(catalog.summaries())


def print_dialects() -> int:
    """The known dialects, a line each."""
    return _print_table((name, "") for name in _dialects())


# --- which passes ---


def _pipeline(text: str | None, words: Sequence[str], own: Collection[str]) -> Pipeline:
    """The passes of `--pass-pipeline`, or those given as flags, in their order."""
    flags = [_flag(word, own) for word in words]
    if text is not None and flags:
        raise UsageError("--pass-pipeline and pass flags cannot both be given")
    if text is not None:
        return catalog.pipeline(text)
    try:
        return catalog.pipeline(",".join(catalog.step_text(*flag) for flag in flags))
    except PassError as error:
        raise UsageError(str(error)) from error


def _flag(word: str, own: Collection[str]) -> tuple[str, str]:
    """`--name=a=1,b=2` as the pass's name and `a=1 b=2`; `own` are pcp-opt's flags."""
    if not word.startswith("--"):
        raise UsageError(f"unexpected argument {word!r}: one input file only")
    name, _, options = word[2:].partition("=")
    if name not in catalog.names() and not name.startswith("pcp-"):
        guess = nearest(f"--{name}", own)
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
    for name in [*DIALECTS, *loading.registered()]:
        try:
            context.get_dialect_descriptor(name)
        except ValueError:
            continue
        loaded.append(name)
    return loaded
