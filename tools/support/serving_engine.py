"""The flags of a server's engine, and the engine that they ask for."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path

from pcp.compiler.mesh_option import parse_mesh
from pcp.errors import ConfigError, UsageError
from pcp.serving.interface import Engine
from pcp.tools.support.cache_folder import cache_folder

Log = Callable[[str], None]
AXIS = "tp"


def add_engine_flags(parser: ArgumentParser) -> None:
    """What the engine is made of, for a command's parser."""
    add = parser.add_argument_group("the engine").add_argument
    add("--mesh", metavar="tp=N", help="over N ranks, processes that it starts")
    add("--ranks", type=int, metavar="N", help="the same")
    add("--slots", type=int, default=4, metavar="N", help="requests at once; default 4")
    add("--context", type=int, metavar="N", help="positions of a slot")
    add("--bundle", type=Path, metavar="FILE", help="the compiled functions, if made")
    add("--device", default="", help="IREE's, of each rank; default: by their number")
    add("--cache", metavar="DIR", help="of compiled modules; default: the user's")


def engine_maker(flags: Namespace, log: Log) -> Callable[[], Engine]:
    """What compiles and loads the engine; wrong flags are told now."""
    ranks = _ranks(flags)
    if flags.slots < 1:
        raise ConfigError("--slots: there is at least one")
    if flags.bundle is not None and not flags.bundle.is_file():
        raise ConfigError(f"--bundle {flags.bundle}: there is no such file")

    def compiled() -> Engine:
        from pcp.tools.support.decoder_engine import open_engine

        log(f"compiling the model of {flags.folder}")
        return open_engine(
            flags.folder,
            ranks=ranks,
            slots=flags.slots,
            context=() if flags.context is None else flags.context,
            device=flags.device,
            log=log,
            cache=cache_folder(flags.cache),
        )

    return compiled if flags.bundle is None else lambda: _loaded(flags, log)


def _loaded(flags: Namespace, log: Log) -> Engine:
    """The engine of a bundle that was made before."""
    from pcp.bundle import Bundle
    from pcp.serving import engine
    from pcp.tools.support.decoder_engine import spread_engine

    bundle = Bundle.read(flags.bundle)
    if bundle.manifest.partition_mesh().size > 1:
        given = {"slots": flags.slots, "device": flags.device, "log": log}
        return spread_engine(bundle, flags.folder, **given)
    device = flags.device or "local-task"
    return engine.load(bundle, flags.folder, slots=flags.slots, device=device)


def _ranks(flags: Namespace) -> int:
    if flags.mesh is None:
        ranks = 1 if flags.ranks is None else flags.ranks
    else:
        mesh = parse_mesh(flags.mesh)
        alone = tuple(mesh.axes) == (AXIS,) and mesh.workers is None
        if not alone or flags.ranks not in (None, mesh.size):
            raise UsageError(f"--mesh {flags.mesh}: a server's mesh is {AXIS}=N")
        ranks = mesh.size
    if ranks < 1:
        raise UsageError(f"--ranks {ranks}: there is at least one")
    return ranks
