"""A lowered module becomes one compiled module per target.

    copy ─► the target's passes, assign, strip ─► text ─► cache or iree-compile

The texts are made here in order; IREE's processes run side by side. IREE reads
the text with locations, so that its errors point at the model and not at what pcp
made of it; the cache goes by the text without.
"""

import io
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import cpu_count
from pathlib import Path

from pcp.compiler import catalog, iree
from pcp.compiler.cache import Cache, key
from pcp.compiler.options import CompileOptions
from pcp.compiler.targets import OWN, SCHEDULE, Target
from pcp.dialect.bindings import ir
from pcp.dialect.context import make_context
from pcp.errors import CompileError, ConfigError
from pcp.passes.core.straight_functions import straight
from pcp.passes.kernels.processors import host_name
from pcp.tuning_table import TuningTable


@dataclass(frozen=True)
class TargetText:
    """What IREE is given for a target: `plain` for people and the cache's key."""

    plain: str
    located: str
    straight: tuple[str, ...]
    """See `passes.core.straight_functions`."""
    unscheduled: "Callable[[], TargetText] | None" = field(default=None, compare=False)
    """Makes the text in which IREE chooses the tiles; None where it chooses now."""


@dataclass(frozen=True)
class Binary:
    """A compiled module, and its straight functions."""

    content: bytes
    straight: tuple[str, ...]


def emit_all(
    programs: Sequence[tuple[ir.Module, Target]], options: CompileOptions
) -> list[Binary]:
    """Each program compiled for its target, in order; equal ones only once."""
    programs = tuned(programs, options.tuning)
    if options.kernels == "none":
        programs = [(module, target.without(OWN)) for module, target in programs]
    once = {(id(m), t.name): (m, t) for m, t in programs}
    texts = {key: target_text(*one) for key, one in once.items()}
    wanted = [(texts[id(m), t.name], t) for m, t in programs]
    distinct = {(text.plain, target.name): (text, target) for text, target in wanted}
    for number, (text, target) in enumerate(distinct.values()):
        _check_doubles(text, target, options)
        if options.keep_ir:
            again = (
                f"-{number}" if len(distinct) > len({t.name for _, t in wanted}) else ""
            )
            path = options.keep_ir / f"target-{target.file_name}{again}.mlir"
            path.write_text(text.plain)
    compiled = dict(zip(distinct, _run(list(distinct.values()), options), strict=True))
    return [Binary(compiled[t.plain, on.name], t.straight) for t, on in wanted]


def tuned(
    programs: Sequence[tuple[ir.Module, Target]], file: Path | None
) -> Sequence[tuple[ir.Module, Target]]:
    """The programs, those for the target of a tuning table with what it says.

    `ConfigError` where it is of none of their targets.
    """
    if file is None:
        return programs
    table, host = TuningTable.read(file), host_name()
    unfit = {target.name: table.unfit(target.name, host) for _, target in programs}
    if all(unfit.values()):
        raise ConfigError(f"{file}: {next(iter(unfit.values()))}")
    return [
        (module, target if unfit[target.name] else target.tuned(table.option))
        for module, target in programs
    ]


def _run(
    jobs: Sequence[tuple[TargetText, Target]], options: CompileOptions
) -> list[bytes]:
    """IREE's processes side by side; the first failure stops the others."""
    running = iree.Running()
    with ThreadPoolExecutor(min(options.jobs or cpu_count() or 1, len(jobs))) as pool:
        try:
            futures = [
                pool.submit(compile_target, text, target, options, running)
                for text, target in jobs
            ]
            return [future.result() for future in futures]
        except BaseException:  # the first error, or Ctrl-C: the others are not wanted
            running.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_DOUBLE = re.compile(r"\bf64\b|xf64\b")
_SIGNATURE = re.compile(r"^ *func\.func (?!private).*?\{$", re.MULTILINE)


def _check_doubles(text: TargetText, target: Target, options: CompileOptions) -> None:
    """Say where f64 is computed in f32; refuse f64 that a caller would pass."""
    if target.doubles or not _DOUBLE.search(text.plain):
        return
    if any(_DOUBLE.search(line) for line in _SIGNATURE.findall(text.plain)):
        raise CompileError(
            f"{options.source}: IREE does not compile f64 for {target.name}, but a "
            "function takes or returns it; convert it to f32 in the model"
        )
    options.report(
        f"{target.name}: IREE does not compile f64 here; it is computed in f32"
    )


def target_text(module: ir.Module, target: Target) -> TargetText:
    """`module` as IREE is given it for `target`."""
    assign = f"pcp-assign-target{{target={target.name}}}"
    steps = [*target.passes, assign, "pcp-strip-metadata"]
    clone = copy(module)
    catalog.pipeline(f"builtin.module({','.join(steps)})").run(clone)
    operation, found = clone.operation, tuple(sorted(straight(clone)))
    plain, located = operation.get_asm(), operation.get_asm(enable_debug_info=True)
    if _TILES not in plain:
        return TargetText(plain, located, found)
    return TargetText(
        plain, located, found, lambda: target_text(module, target.without(SCHEDULE))
    )


def copy(module: ir.Module) -> ir.Module:
    """The same module, locations included, in a context of its own."""
    context = make_context()
    context.allow_unregistered_dialects = True  # IREE's own, after lowering
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    with context:
        return ir.Module.parse(buffer.getvalue())


def compile_target(
    text: TargetText, target: Target, options: CompileOptions, running: iree.Running
) -> bytes:
    """Try the optimization levels in order; the last failure counts."""
    *higher, last = options.opt_levels
    for level in higher:
        try:
            return _compile_level(text, target, level, options, running)
        except iree.Failure as error:
            options.report(
                f"{target.name}: IREE fails at {level} ({error}); trying a lower level"
            )
    try:
        return _compile_last(text, target, last, options, running)
    except iree.Failure as error:
        source = options.source
        where = f"{source}:{error.where}" if error.where else source
        raise CompileError(f"{where}: target {target.name}: {error.what}") from error
    except CompileError as error:
        raise CompileError(
            f"{options.source}: target {target.name}: {error}"
        ) from error


_TILES = "#iree_codegen.compilation_info<"


def _compile_last(
    text: TargetText,
    target: Target,
    level: str,
    options: CompileOptions,
    running: iree.Running,
) -> bytes:
    """With pcp's tiles, and with IREE's own where IREE cannot follow those."""
    try:
        return _compile_level(text, target, level, options, running)
    except iree.Failure as error:
        if text.unscheduled is None or isinstance(error, iree.LateImport):
            raise
        options.report(
            f"{target.name}: IREE fails with these tiles ({error}); trying its own"
        )
    return _compile_level(text.unscheduled(), target, level, options, running)


def _compile_level(
    text: TargetText,
    target: Target,
    level: str,
    options: CompileOptions,
    running: iree.Running,
) -> bytes:
    flags = (f"--iree-opt-level={level}", *target.all_flags)
    cache = Cache(options.cache) if options.cache else None
    said = (*iree.common_flags(text.plain), *flags, *target.made_for)
    name = key(text.plain, said, iree.version())
    if cache and (found := cache.get(name)) is not None:
        options.tell_time(f"{target.name}: {len(found)} bytes from the cache")
        return found
    start = time.monotonic()
    content = iree.compile_text(
        text.located, flags, timeout=options.timeout, running=running
    )
    seconds = time.monotonic() - start
    made = f"{len(content)} bytes in {seconds:.1f} s at {level}"
    options.tell_time(f"{target.name}: {made}")
    if cache:
        _store(cache, name, content, options)
    return content


def _store(cache: Cache, name: str, content: bytes, options: CompileOptions) -> None:
    """A cache that cannot be written costs time later, not the result now."""
    try:
        cache.put(name, content)
    except OSError as error:
        options.tell_time(f"cache {cache.folder}: not written: {error.strerror}")
