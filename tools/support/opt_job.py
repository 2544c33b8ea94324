"""The work of pcp-opt on one input: split, parse, run the passes, verify, report."""

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pcp.compiler import catalog, repro
from pcp.dialect.bindings import ir
from pcp.dialect.context import decode, is_bytecode, make_context, parse_bytes
from pcp.dialect.diagnostics import diagnostics, is_echo, location_string
from pcp.errors import IRError, PcpError, UsageError, nearest
from pcp.passes.core.base import Observer, Pipeline
from pcp.tools.support.command import report
from pcp.tools.support.expected import PROG, SEPARATOR, Received, mismatches
from pcp.tools.support.observers import ALL, PrintIR, Timing, pass_names


@dataclass(frozen=True)
class Chunk:
    """A part of the input. Blank lines in front keep the file's line numbers."""

    content: bytes
    first_line: int = 1


def split(content: bytes) -> Iterator[Chunk]:
    """The parts between lines that say `// -----`; blank parts are left out."""
    part: list[bytes] = []
    first = 1
    lines = [*content.splitlines(keepends=True), SEPARATOR.encode()]
    for number, line in enumerate(lines, 1):
        if line.strip() != SEPARATOR.encode():
            part.append(line)
            continue
        if any(text.strip() for text in part):
            yield Chunk(b"\n" * (first - 1) + b"".join(part), first)
        part, first = [], number + 1


@dataclass
class Job:
    """One run; `failures` counts the parts of the input that went wrong."""

    options: argparse.Namespace
    pipeline: Pipeline
    failures: int = 0
    context: ir.Context = field(default_factory=make_context)
    timing: Timing | None = None
    received: list[Received] = field(default_factory=list)

    def __post_init__(self) -> None:
        unregistered = self.options.allow_unregistered_dialect
        self.context.allow_unregistered_dialects = unregistered
        self.context.attach_diagnostic_handler(self._on_diagnostic)
        self.timing = Timing() if self.options.mlir_timing else None
        _check_printed(self.options, self.pipeline)
        self.observers = _observers(self.options)
        self.observers += [self.timing] if self.timing else []

    def process(self, content: bytes) -> list[ir.Module]:
        """The modules that came through; what did not was reported and counted."""
        chunks = [Chunk(content)]
        if self.options.split_input_file and not is_bytecode(content):
            chunks = list(split(content)) or chunks
        verifying = self.options.verify_diagnostics
        work = self._verify_chunk if verifying else self._run_chunk
        modules = [work(chunk) for chunk in chunks]
        return [module for module in modules if module is not None]

    def _run_chunk(self, chunk: Chunk) -> ir.Module | None:
        try:
            return self._transform(chunk)
        except PcpError as error:
            self.failures += 1
            report(PROG, self._located(error), debug=self.options.debug)
            return None

    def _verify_chunk(self, chunk: Chunk) -> ir.Module | None:
        """Failures are fine here as long as the file's comments expect them."""
        self.received.clear()
        module = None
        try:
            module = self._transform(chunk)
        except PcpError as error:
            self.received += as_received(error)
        lines = decode(chunk.content, self.options.file).splitlines()
        problems = mismatches(lines, self.received)
        for problem in problems:
            print(f"{self.options.file}:{problem}", file=sys.stderr)
        self.failures += bool(problems)
        return module

    def _transform(self, chunk: Chunk) -> ir.Module:
        module = parse_bytes(chunk.content, self.context, source=self.options.file)
        # An expected failure is not worth a reproducer.
        keep = not self.options.verify_diagnostics
        run = repro.run if keep else Pipeline.run
        try:
            with self.context:
                each = self.options.verify_each
                return run(self.pipeline, module, self.observers, verify_each=each)
        except ir.MLIRError as error:
            raise IRError(diagnostics(error, self.options.file)) from error

    def _located(self, error: PcpError) -> PcpError:
        """The error with the input's name where passes could only say `-`."""
        text = str(error)
        if self.options.file == "-" or not text.startswith("-:"):
            return error
        named = type(error)(self.options.file + text[1:])
        for note in getattr(error, "__notes__", ()):
            named.add_note(note)
        return named

    def _on_diagnostic(self, diagnostic: ir.Diagnostic) -> bool:
        """Warnings and remarks come here; errors come as exceptions."""
        if self.options.verify_diagnostics:
            self.received += flatten(diagnostic)
        else:
            where = location_string(diagnostic.location, self.options.file)
            kind = diagnostic.severity.name.lower()
            print(f"{where}: {kind}: {diagnostic.message}", file=sys.stderr)
        return True


def as_received(error: PcpError) -> list[Received]:
    """The diagnostics of an error: MLIR's own, or its text at the place it names."""
    cause: Any = error.__cause__
    if isinstance(cause, ir.MLIRError):
        return [r for d in cause.error_diagnostics for r in flatten(d)]
    place = re.match(r"(?:\S*[^\w/])?-:(\d+):\d+", str(error))
    return [Received("error", int(place[1]) if place else None, str(error))]


def flatten(diagnostic: ir.Diagnostic) -> list[Received]:
    """A diagnostic and its notes, without those that only print the op again."""
    notes = [n for d in diagnostic.notes for n in flatten(d) if not is_echo(n.text)]
    place = re.search(r'"-":(\d+):\d+', str(diagnostic.location))
    line = int(place[1]) if place else None
    return [
        Received(diagnostic.severity.name.lower(), line, diagnostic.message),
        *notes,
    ]


def _check_printed(options: argparse.Namespace, pipeline: Pipeline) -> None:
    """`UsageError` for a pass to print around that there is not, as mlir-opt's."""
    known = set(catalog.known()).union(*map(pass_names, pipeline.steps))
    for when in ("before", "after"):
        for name in getattr(options, f"mlir_print_ir_{when}"):
            if name not in known:
                raise UsageError(
                    f"--mlir-print-ir-{when}: no pass named {name!r}."
                    + nearest(name, known)
                )


def _observers(options: argparse.Namespace) -> list[Observer]:
    """What the printing flags ask for, in the order it happens around a pass."""
    generic = options.mlir_print_op_generic
    found: list[Observer] = []
    for when in ("before", "after"):
        everything = getattr(options, f"mlir_print_ir_{when}_all")
        names = ALL if everything else getattr(options, f"mlir_print_ir_{when}")
        if names:
            found.append(PrintIR(when, names, generic))
    if options.mlir_print_ir_after_change:
        found.append(PrintIR("after", ALL, generic, on_change=True))
    if options.mlir_print_ir_after_failure:
        found.append(PrintIR("failed", ALL))
    return found
