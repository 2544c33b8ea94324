"""The flags of the cage around native code that others made."""

from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pcp.errors import PcpError
from pcp.runtime.cage import cage
from pcp.runtime.cage.cage import Held
from pcp.tools.support.command import Parser
from pcp.training.config.experiment import BUILTIN, HUGGING_FACE, Experiment
from pcp.training.config.experiment_file import python_dataset

NOT_CAGED = Held(False, 0)
_HINT = (
    "the cage lets this worker read Python, the folder it was started in, --data and "
    "--readable PATH; make no socket; write to --writable PATH. --cage off lifts it"
)


def add_cage_flags(parser: Parser) -> None:
    """`--cage`, `--readable`, `--writable`: what native code of others may reach."""
    group = parser.add_argument_group("cage (around native code that others made)")
    add = group.add_argument
    add(
        "--cage",
        choices=("on", "off"),
        default="on",
        help="on, the default: no other program, no new connection, no files but "
        "Python's, this folder's and those named, as far as the kernel sees to it",
    )
    help_ = "a file, or a folder with all below, that the data lie in; again for more"
    add("--readable", action="append", default=[], metavar="PATH", help=help_)
    help_ = "one that your own dataset writes to; again for more"
    add("--writable", action="append", default=[], metavar="PATH", help=help_)


def cage_arguments(flags: Namespace) -> list[str]:
    """The same for a command that this one starts, with absolute paths."""
    return [
        *("--cage", flags.cage),
        *_named("--readable", map(Path, flags.readable)),
        *_named("--writable", map(Path, flags.writable)),
    ]


def arguments_for(experiment: Experiment) -> list[str]:
    """What a worker of this experiment is told, where its data lie as they do here.

    Data of the Hugging Face hub come over connections of their own, and are kept in the
    hub's cache: no cage fits.
    """
    path = experiment.data_path
    if path.startswith(HUGGING_FACE):
        return ["--cage", "off"]
    options = experiment.data_options
    paths = (
        *(path, experiment.chunk_manifest_path),
        *(options.mask_path, options.tokenizer_path),
    )
    found = [p for p in paths if p and not p.startswith(BUILTIN)]
    return _named("--readable", map(_around, found))


def _named(flag: str, paths: Iterable[Path]) -> list[str]:
    return [word for path in paths for word in (flag, str(path.absolute()))]


def _around(path: str) -> Path:
    """The folder of a file, which may have others beside it that belong to it."""
    python = python_dataset(path)
    place = Path(python[0] if python else path).absolute()
    if place.is_dir():
        return place
    folder = next(p for p in place.parents if p.exists())
    home = Path.home()
    return place if folder == home or folder in home.parents else folder


def enter(flags: Namespace) -> Held:
    """Close the cage that the flags describe around this process."""
    if flags.cage == "off":
        return NOT_CAGED
    files = [flags.data, flags.key_file, flags.tls_cert, flags.tls_key, flags.tls_ca]
    readable = [Path(file) for file in (*files, *flags.readable) if file]
    if flags.tls_revoked:  # a new list may take the place of this one
        readable.append(_around(flags.tls_revoked))
    return cage.enter(readable=readable, writable=map(Path, flags.writable))


@contextmanager
def explained(held: Held) -> Iterator[None]:
    """What fails inside for want of a right is said to be the cage's doing."""
    try:
        yield
    except PcpError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, PermissionError):
            cause = cause.__cause__
        if cause is not None and held.program:
            error.add_note(_HINT)
        raise
