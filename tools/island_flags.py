"""The flags of islands, of all commands that hold a shepherd."""

from argparse import Namespace
from pathlib import Path

from pcp.errors import UsageError
from pcp.tools.support.command import Parser
from pcp.training.config.experiment import Experiment


def add_flags(parser: Parser) -> None:
    """The flags of islands, of all commands that hold a shepherd."""
    add = parser.add_argument
    add(
        "--cluster",
        metavar="FILE",
        help="devices, as pcp probe writes them: an island's mesh is chosen for them",
    )
    add("--islands", type=int, metavar="N", help="as --workers, where a mesh is given")
    add(
        "--mesh",
        action="append",
        default=[],
        metavar="tp=2,..",
        help="instead of the experiment's: a worker is an island of so many devices; "
        "given again, one island of each mesh",
    )


def changes(flags: Namespace) -> list[tuple[str, object]]:
    """The changes of an experiment that its flags ask for, those of islands too.

    Their number is that of workers from here on.
    """
    found = list(flags.changes)
    if len(flags.mesh) == 1:
        found += [("mesh", flags.mesh[0]), ("islands", [])]
    elif flags.mesh:
        if len(flags.mesh) != (flags.islands or flags.workers or len(flags.mesh)):
            raise UsageError(
                f"--mesh is given {len(flags.mesh)} times, once for each island; leave "
                "--islands and --workers out"
            )
        if len(set(flags.mesh)) == 1:
            raise UsageError(
                f"--mesh: islands of {flags.mesh[0]} are all alike; say --mesh "
                f"{flags.mesh[0]} --islands {len(flags.mesh)}"
            )
        flags.islands = flags.workers = None
        each = [{"mesh": mesh} for mesh in flags.mesh]
        found += [("mesh", None), ("islands", each)]
    if flags.cluster is not None:
        found.append(("cluster", str(Path(flags.cluster).absolute())))
    if flags.islands is not None:
        if flags.workers is not None:
            raise UsageError("--islands, --workers: an island is a worker; say one")
        flags.workers = flags.islands
    return found


def check(flags: Namespace, experiment: Experiment) -> None:
    """`UsageError` for a number of islands where nothing says what one is."""
    if flags.islands is not None and not experiment.shapes:
        raise UsageError("--islands: say what an island is, --mesh tp=2")
    if experiment.islands and flags.workers not in (None, len(experiment.islands)):
        raise UsageError(
            f"--islands, --workers: the experiment has {len(experiment.islands)} "
            "islands of unlike shape; name all of them, --mesh tp=2 --mesh tp=1"
        )
