"""When a pass fails: the IR it was given, and the command that fails again.

    run(pipeline, module)

is `pipeline.run(module)`, except that an error gains a note such as

    reproduce with: pcp-opt pcp-repro-x1y2.mlir '--pass-pipeline=builtin.module(cse)'

The file holds the module as it was before the failing pass.
"""

import os
import shlex
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass

from pcp.dialect.bindings import ir
from pcp.passes.core.base import Observer, Pipeline, Step


def run(
    pipeline: Pipeline,
    module: ir.Module,
    observers: Iterable[Observer] = (),
    *,
    verify_each: bool = True,
) -> ir.Module:
    """Run `pipeline` on `module` in place; an error says how to reproduce it."""
    keeper = _Keeper()
    try:
        return pipeline.run(module, [keeper, *observers], verify_each=verify_each)
    except Exception as error:
        if keeper.failed is not None:
            error.add_note(f"reproduce with: {_dump(keeper, error)}")
        raise


@dataclass
class _Keeper:
    """Remembers the module before each pass: a clone costs less than a print."""

    before: ir.Operation | None = None
    failed: Step | None = None

    def __call__(self, step: Step, module: ir.Module, when: str) -> None:
        if when == "before":
            self.before = module.operation.clone()
        elif when == "failed":
            self.failed = step


def _dump(keeper: _Keeper, error: Exception) -> str:
    assert keeper.before is not None
    assert keeper.failed is not None
    handle, path = tempfile.mkstemp(prefix="pcp-repro-", suffix=".mlir")
    command = reproducing_command(path, keeper.failed, keeper.before.context)
    # Generic form prints what does not verify, too.
    text = keeper.before.get_asm(print_generic_op_form=True, assume_verified=True)
    comment = "".join(f"// {line}\n" for line in [command, *str(error).splitlines()])
    with os.fdopen(handle, "w") as file:
        file.write(comment + text)
    return command


def reproducing_command(path: str, step: Step, context: ir.Context) -> str:
    """The `pcp-opt` line that runs `step` on the module in `path`."""
    words = ["pcp-opt", path, f"--pass-pipeline=builtin.module({step})"]
    if context.allow_unregistered_dialects:
        words.append("--allow-unregistered-dialect")
    return shlex.join(words)
