"""The flags of an engine, and the engine that they ask for."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pcp.errors import ConfigError

_ROWS = (1, 2, 4, 8, 16, 32, 64)
_CHUNKS = (32, 128)


def add_engine_flags(parser: ArgumentParser) -> None:
    """What the engine is made of, for a command's parser."""
    add = parser.add_argument_group("the engine").add_argument
    add("--slots", type=int, default=4, metavar="N", help="requests at once; default 4")
    add("--context", type=int, metavar="N", help="positions of a slot")
    add("--bundle", type=Path, metavar="FILE", help="the compiled functions, if made")
    add("--device", default="local-task", help="IREE's; default local-task")


def engine_maker(flags: Namespace, log: Callable[[str], None]) -> Callable[[], Any]:
    """What compiles and loads the engine; wrong flags are told now."""
    if flags.slots < 1:
        raise ConfigError("--slots: there is at least one")

    def make() -> Any:
        from pcp.serving.engine import LocalEngine

        bundle = flags.bundle or _compiled(flags, log)
        log(f"loading the weights of {flags.folder}")
        return LocalEngine.load(
            bundle, flags.folder, slots=flags.slots, device=flags.device
        )

    return make


def phases(slots: int) -> list[str]:
    """Functions for chunks of prompts, and for as many requests as there are slots."""
    rows = [rows for rows in _ROWS if rows <= slots]
    chunks = ",".join(map(str, _CHUNKS))
    return [f"prefill:{chunks}", f"decode:{','.join(map(str, rows))}"]


def _compiled(flags: Namespace, log: Callable[[str], None]) -> Any:
    from pcp.tools.support.decoder_bundle import compile_folder

    log(f"compiling the model of {flags.folder}")
    context = flags.context if flags.context is not None else ()
    return compile_folder(flags.folder, phases(flags.slots), context)
