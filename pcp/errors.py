"""Every error pcp raises on purpose.

PcpError
├── UsageError            wrong flags or arguments                 exit 2
│   └── MissingPackage    a package of an extra is not installed
├── ConfigError           an experiment file or option value
├── IRError               a program that cannot be read or is invalid
│   ├── MissingRule       an op on the active path without a derivative
│   └── PassError         a pass refused its input
│       └── DoesNotFit    a program holds more memory than it is given
├── CompileError          a target compiler refused the program
├── BundleError           a bundle is truncated, tampered or too new
└── RuntimeFault          something went wrong while running
    ├── Timeout           a deadline passed
    ├── PeerLost          a member of the group is gone
    ├── CollectiveAborted an operation was given up on all members
    ├── ProtocolError     bytes that no member of this version would send
    ├── HostFunctionFailed  a function that the host bound raised, or gave other types
    └── StateMismatch     shared state differs where it must not

A message says what is wrong, where (location, file, peer), and what to do
about it. Commands print it as one line and exit with `exit_code`.
"""

import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

from pcp.version import DISTRIBUTION


class PcpError(Exception):
    """Base of all errors; `exit_code` is what a command exits with."""

    exit_code = 1


class UsageError(PcpError):
    """The command line itself is wrong."""

    exit_code = 2


class MissingPackage(UsageError, ImportError):
    """What was asked for needs a package that this installation has not."""


class ConfigError(PcpError):
    """An experiment file or an option has an unknown key or a bad value."""


class IRError(PcpError):
    """A program cannot be parsed, or does not verify."""


class MissingRule(IRError):
    """An op on the active path has no derivative rule."""


class PassError(IRError):
    """A pass cannot do its work on this program."""


class DoesNotFit(PassError):
    """A program holds more than it may; `least` bytes is the least that was found."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least


class CompileError(PcpError):
    """A target compiler refused the program."""


class BundleError(PcpError):
    """A bundle is truncated, tampered with, or of another version."""


def let_go(error: BaseException) -> None:
    """Clear the frames of an error, and of those behind it, that have ended.

    They hold arrays of a device, and who keeps the error may keep it longer than the
    device, before which IREE's buffers have to go.
    """
    held: BaseException | None = error
    while held is not None:
        traceback.clear_frames(held.__traceback__)
        held = held.__cause__ or held.__context__


class RuntimeFault(PcpError, RuntimeError):
    """Base of what can go wrong while a program runs.

    Scripts that catch Gloo's failures catch a RuntimeError.
    """


class Timeout(RuntimeFault):
    """A deadline passed before the operation was done.

    `peers` are the ranks that did not come to it, where they are known.
    """

    def __init__(self, message: str, *, peers: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.peers = tuple(peers)


class PeerLost(RuntimeFault):
    """A member of the group is gone; the operation did not happen.

    `peer` is its rank in the group, when that is known.
    """

    def __init__(self, message: str, *, peer: int | None = None) -> None:
        super().__init__(message)
        self.peer = peer


class CollectiveAborted(RuntimeFault):
    """The operation was given up on every member; inputs are as they were."""


class ProtocolError(RuntimeFault):
    """A peer sent bytes that no member of this version would send."""


class HostFunctionFailed(RuntimeFault):
    """A function that the host bound raised, or gave what it does not declare."""


class StateMismatch(RuntimeFault):
    """Shared state differs between members where it must be identical."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` for the closest known name, or an empty string."""
    match = get_close_matches(name, list(known), n=1)
    return f" Did you mean {match[0]!r}?" if match else ""


def check_name(what: str, name: object) -> None:
    """UsageError unless `name`, of `what`, is a text."""
    if not isinstance(name, str):
        raise UsageError(f"{what} is given by its name, a text, not {name!r}")


def install(extra: str = "") -> str:
    """The command that adds an extra to the pcp that runs: a clone, or a wheel's.

    For a wheel's, pip finds the distribution installed and fetches only what the extra
    names.
    """
    wanted = f"[{extra}]" if extra else ""
    if in_clone(Path(__file__)):
        return f"pip install -e {_quoted('.' + wanted)} in pcp's clone"
    return f"pip install {_quoted(DISTRIBUTION + wanted)}"


def in_clone(file: Path) -> bool:
    """Whether this file of pcp's own lies in a clone: next to a project file."""
    return (file.resolve().parents[1] / "pyproject.toml").is_file()


def _quoted(requirement: str) -> str:
    """For a shell, which takes brackets for a pattern."""
    return f"'{requirement}'" if "[" in requirement else requirement


def counted(number: int, noun: str) -> str:
    """`1 worker`, `2 workers`, `3 processes`, `4 batches`."""
    ending = "es" if noun.endswith(("s", "ch")) else "s"
    return f"{number} {noun}{'' if number == 1 else ending}"
