"""The flags of an engine, and the engine that they ask for."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pcp.errors import ConfigError
from pcp.tools.support.cache_folder import cache_folder


def add_engine_flags(parser: ArgumentParser) -> None:
    """What the engine is made of, for a command's parser."""
    add = parser.add_argument_group("the engine").add_argument
    add("--slots", type=int, default=4, metavar="N", help="requests at once; default 4")
    add("--context", type=int, metavar="N", help="positions of a slot")
    add("--bundle", type=Path, metavar="FILE", help="the compiled functions, if made")
    help_ = "processes that share the model (tensor parallelism); default 1"
    add("--ranks", type=int, default=1, metavar="N", help=help_)
    help_ = "IREE's, of each rank; default local-task, of several ranks local-sync"
    add("--device", default="", help=help_)


def engine_maker(flags: Namespace, log: Callable[[str], None]) -> Callable[[], Any]:
    """What compiles and loads the engine; wrong flags are told now."""
    if flags.slots < 1:
        raise ConfigError("--slots: there is at least one")

    if flags.ranks < 1:
        raise ConfigError("--ranks: there is at least one")

    def make() -> Any:
        from pcp.tools.support import decoder_engine

        bundle = flags.bundle or _compiled(flags, log)
        log(f"loading the weights of {flags.folder}")
        return decoder_engine.of_bundle(
            bundle, flags.folder, slots=flags.slots, device=flags.device, log=log
        )

    return make


def _compiled(flags: Namespace, log: Callable[[str], None]) -> Any:
    from pcp.tools.support.decoder_bundle import compile_folder
    from pcp.tools.support.decoder_engine import phases

    log(f"compiling the model of {flags.folder}")
    context = flags.context if flags.context is not None else ()
    wanted = phases(flags.slots, context)
    return compile_folder(
        flags.folder, wanted, context, ranks=flags.ranks, cache=cache_folder()
    )
