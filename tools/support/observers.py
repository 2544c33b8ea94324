"""What watches a pipeline: printing the IR around passes, and timing them."""

import re
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TextIO

from pcp.dialect.bindings import ir
from pcp.passes.core.base import Step

ALL = frozenset({"*"})


def pass_names(step: Step) -> set[str]:
    """The passes a step runs: one of ours, or those in MLIR's nested text."""
    return set(re.findall(r"[\w-]+(?=[{,)]|$)", re.sub(r"\{[^}]*\}", "", step.name)))


@dataclass
class PrintIR:
    """Print the module, as mlir-opt's flags do, when `when` and the pass say so.

    `names` holds pass names, or is `ALL`. `on_change` leaves out passes that
    changed nothing.
    """

    when: str
    names: Collection[str] = ALL
    generic: bool = False
    on_change: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    _before: str = ""

    def __call__(self, step: Step, module: ir.Module, when: str) -> None:
        """Called by the pipeline around each pass."""
        if self.names is not ALL and not pass_names(step) & set(self.names):
            return
        if self.on_change and when == "before":
            self._before = self._text(module)
        if when != self.when:
            return
        text = self._text(module)
        if self.on_change and text == self._before:
            return
        title = "After" if when != "before" else "Before"
        failed = " Failed" if when == "failed" else ""
        print(
            f"// -----// IR Dump {title} {step.name}{failed} //----- //\n{text}\n",
            file=self.stream,
        )

    def _text(self, module: ir.Module) -> str:
        # After a failure the module may not verify, and only this form can print it.
        generic = self.generic or self.when == "failed"
        return module.operation.get_asm(
            print_generic_op_form=generic, assume_verified=self.when == "failed"
        ).rstrip()


@dataclass
class Timing:
    """Wall-clock seconds of each pass, reported by `table()`."""

    seconds: dict[str, float] = field(default_factory=dict)
    _started: float = 0.0

    def __call__(self, step: Step, module: ir.Module, when: str) -> None:
        """Called by the pipeline around each pass."""
        if when == "before":
            self._started = time.perf_counter()
        else:
            self.add(step.name, time.perf_counter() - self._started)

    def add(self, name: str, seconds: float) -> None:
        """Count `seconds` for `name`."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def table(self) -> str:
        """One line a pass, as `mlir-opt --mlir-timing` prints them."""
        total = sum(self.seconds.values())
        rows = [*self.seconds.items(), ("Total", total)]
        lines = [
            "===---- Execution time report ----===",
            "  ----Wall Time----  ----Name----",
        ]
        for name, seconds in rows:
            share = 100 * seconds / total if total else 0.0
            lines.append(f"  {seconds:8.4f} ({share:5.1f}%)  {name}")
        return "\n".join(lines)
