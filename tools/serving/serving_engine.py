"""The flags of a server's engine, and the engine that they ask for."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from math import prod
from pathlib import Path

from pcp.bundle import Bundle
from pcp.errors import ConfigError, UsageError
from pcp.serving.cached_model import Shapes
from pcp.serving.drafting import Drafter, PromptLookup
from pcp.serving.interface import Engine
from pcp.tools.serving.serving_mesh import parse
from pcp.tools.support.cache_folder import cache_folder

Log = Callable[[str], None]
LOOKUP, DRAFT_WEIGHTS = "lookup", "int8"
WEIGHTS = ("f32", "bf16", "f16", "int8", "int4")


def add_engine_flags(parser: ArgumentParser) -> None:
    """What the engine is made of, for a command's parser."""
    add = parser.add_argument_group("the engine").add_argument
    help_ = "N processes share each layer (tp), or the layers (pp); default 1"
    add("--mesh", metavar="tp=N,pp=N", help=help_)
    add("--ranks", type=int, metavar="N", help="as tp=N")
    help_ = "ranks in reserve, for those that die; default 0"
    add("--spares", type=int, default=0, metavar="N", help=help_)
    add("--slots", type=int, default=4, metavar="N", help="requests at once; default 4")
    add("--context", type=int, metavar="N", help="positions of a slot")
    help_ = "of products: f32, bf16, f16, int8, int4; default f32"
    add("--weights", choices=WEIGHTS, default="f32", help=help_)
    help_ = "speculative decoding: a smaller model's folder, or lookup, which copies "
    add("--draft", metavar="DIR", help=f"{help_}what followed the same tokens before")
    help_ = "that are drafted for one pass of the model; default 4"
    add("--draft-tokens", type=int, default=4, metavar="N", help=help_)
    add("--bundle", type=Path, metavar="FILE", help="the compiled functions, if made")
    help_ = "IREE's, of each rank; default local-task, of several ranks local-sync"
    add("--device", default="", help=help_)
    add("--cache", metavar="DIR", help="of compiled modules; default: the user's")


Make = Callable[[Path, int | None, Path | None], Engine]
"""Takes a model's folder, a number of slots in place of `--slots`, and a folder of
weights in place of its own."""


def engine_maker(flags: Namespace, log: Log) -> Make:
    """What compiles and loads engines; wrong flags are told now.

    `--bundle` and `--draft` are of the first folder that the flags name.
    """
    mesh = _mesh(flags)
    if flags.slots < 1:
        raise ConfigError("--slots: there is at least one")
    if flags.bundle is not None and flags.weights != "f32":
        raise UsageError("--bundle and --weights: a bundle has its kind of weights")
    if flags.spares < 0 or (
        flags.spares and prod(mesh.values()) == 1 and flags.bundle is None
    ):
        raise UsageError(
            f"--spares {flags.spares}: spares are for ranks that die; give --mesh tp=N"
        )
    if flags.draft not in (None, LOOKUP) and not Path(flags.draft).is_dir():
        raise ConfigError(
            f"--draft {flags.draft}: there is no such folder; give a smaller model's, "
            f"or {LOOKUP}"
        )
    if not 1 <= flags.draft_tokens <= 16:
        raise ConfigError(f"--draft-tokens {flags.draft_tokens}: they are 1 to 16")
    if flags.bundle is not None and not flags.bundle.is_file():
        raise ConfigError(f"--bundle {flags.bundle}: there is no such file")

    def make(folder: Path, slots: int | None, weights: Path | None) -> Engine:
        from pcp.serving.weights import check_same_model
        from pcp.tools.serving import decoder_engine

        count, first = slots or flags.slots, folder == flags.folders[0]
        if weights is not None:
            check_same_model(folder, str(weights))
        bundle = Bundle.read(flags.bundle) if flags.bundle and first else None
        bundle = bundle or _compiled(flags, folder, count, mesh, log)
        drafter = _drafter(flags, count, bundle, log) if first else None
        log(f"loading the weights of {weights or folder}")
        return decoder_engine.of_bundle(
            bundle,
            weights or folder,
            slots=count,
            device=flags.device,
            spares=flags.spares,
            drafter=drafter,
            log=log,
        )

    return make


def _drafter(flags: Namespace, slots: int, bundle: Bundle, log: Log) -> Drafter | None:
    """What `--draft` says, for a bundle that has functions for it."""
    if flags.draft is None:
        return None
    shapes = Shapes.of(bundle.manifest)
    if not shapes.drafted:
        raise UsageError(
            f"--bundle {flags.bundle} and --draft: the bundle has no function that "
            "looks at drafts; compile it with a phase as decode:1,1x5"
        )
    if flags.draft == LOOKUP:
        return PromptLookup()
    from pcp.tools.serving.decoder_bundle import check_weights, compile_folder
    from pcp.tools.serving.decoder_engine import draft_model, phases

    folder = Path(flags.draft)
    check_weights(folder, {})
    log(f"compiling the model that drafts, of {folder}")
    context = shapes.context
    wanted = phases(slots, context, drafts=True)
    # Whatever it drafts, the answers are right: its numbers may be rough.
    how = {"cache": cache_folder(flags.cache), "weights": DRAFT_WEIGHTS}
    how |= {"sampler": True, "targets": ["cpu:host"]}
    own = compile_folder(folder, wanted, context, **how)
    place = {"slots": slots, "device": flags.device}
    return draft_model(own, folder, vocabulary=shapes.vocabulary, **place)


def _compiled(
    flags: Namespace, folder: Path, slots: int, mesh: dict[str, int], log: Log
) -> Bundle:
    from pcp.tools.serving.decoder_bundle import check_weights, compile_folder
    from pcp.tools.serving.decoder_engine import phases

    check_weights(folder, mesh)
    log(f"compiling the model of {folder}")
    context = flags.context if flags.context is not None else ()
    drafted = flags.draft_tokens if flags.draft else 0
    wanted = phases(slots, context, drafted=drafted)
    cache = cache_folder(flags.cache)
    how = {"mesh": mesh, "cache": cache, "weights": flags.weights}
    how |= {"sampler": True, "targets": ["cpu:host"]}
    return compile_folder(folder, wanted, context, **how)


def _mesh(flags: Namespace) -> dict[str, int]:
    """What `--mesh` or `--ranks` say."""
    ranks = 1 if flags.ranks is None else flags.ranks
    if ranks < 1:
        raise UsageError(f"--ranks {ranks}: there is at least one")
    if flags.mesh is None:
        return {"tp": ranks} if ranks > 1 else {}
    mesh = parse(flags.mesh)
    if flags.ranks not in (None, prod(mesh.values())):
        raise UsageError(
            f"--mesh {flags.mesh} and --ranks {ranks}: the mesh has "
            f"{prod(mesh.values())} ranks; leave one out"
        )
    return mesh
