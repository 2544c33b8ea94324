"""The bundle to serve of a folder of transformers: its program, compiled."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.frontends.decoders import families, program

PHASES = ("prefill:32,128", "decode:1,2,4,8")
CONTEXT = 1024


def compile_folder(
    folder: str | Path,
    phases: Sequence[str] = PHASES,
    context: int | Sequence[int] = (),
    *,
    targets: Sequence[str] = ("cpu",),
    **options: Any,
) -> Bundle:
    """Prefill and decode functions of a model for these targets, from config.json.

    `context` is how many positions a slot has, or several numbers, which give functions
    for each; left out, as many as the model has and at most 1024. `options` are fields
    of `CompileOptions`. Decoding gains from IREE's O3, which is the default here.
    """
    spec = families.read(folder)
    contexts = [context] if isinstance(context, int) else list(context)
    contexts = contexts or [min(CONTEXT, spec.positions)]
    wanted = program.phases(phases, contexts)
    options = {"opt_level": "O3", "source": str(folder), **options}
    chosen = CompileOptions(
        targets=tuple(targets), mode="forward", entry=wanted[0].name, **options
    )
    return driver.compile(program.build(spec, wanted), chosen)
