"""How a member leaves: after its operations are over, with a BYE to all peers.

1. From now on it starts no operation; callbacks of operations under way still may.
2. It waits until its operations are over (`Leaving.wait`). An operation is over on a
   member when all members have voted for it, so no other member needs a further frame
   of this one.
3. It sends BYE behind all frames, and keeps its connections until every peer has
   closed its end: so each has read all frames (`Group.lingering`).

An operation that is not over by then is given up here. A member that had voted for it
cannot know whether it happens on the others: such an operation fails with that error.

Communicators that are still open when the interpreter exits leave likewise.
"""

import atexit
import sys
import time
from contextlib import ExitStack
from typing import Protocol

from pcp.errors import PcpError, Timeout, UsageError
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.group.group import Group
from pcp.runtime.group.outcomes import again

DRAIN_SECONDS = 60.0
"""A member that leaves waits at most so long, without a `timeout`."""
_EXIT_SECONDS = 10.0
"""The same at the interpreter's exit: a supervisor may kill the process soon."""
_LOOK_SECONDS = 0.002
_NAMED = 5


class Leaving:
    """The operations under way when a member leaves, and their outcomes."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._left: dict[Operation, str] = {}
        """Operations that were not over at the last look, and why."""
        self._failed: list[tuple[str, PcpError]] = []
        self._waited = 0.0

    def wait(self, patience: float) -> None:
        """Wait until all are over, or for `patience` seconds."""
        began = time.monotonic()
        while self._look() and self._waited < patience:
            time.sleep(_LOOK_SECONDS)
            self._waited = time.monotonic() - began

    def check(self) -> None:
        """After the close: raise if an operation failed and the caller is unaware."""
        if self._group.heard:
            return
        cut = [f"{op.title}: {why}" for op, why in self._left.items() if op.error]
        told = cut + [f"{title}: {error}" for title, error in self._failed]
        if len(told) > _NAMED:
            told[_NAMED:] = [f"{len(told) - _NAMED} more"]
        message = f"left before it had happened: {'; '.join(told)}"
        if cut:
            raise Timeout(f"{message} (waited {self._waited:.3g} s)")
        if self._failed:
            raise again(self._failed[0][1], message)

    def _look(self) -> bool:
        loop = self._group.loop
        if loop.closed:
            return False
        self._left, self._failed = loop.ask(self._now)
        if not self._left:
            # An operation from a callback of the last one is behind that question.
            self._left, self._failed = loop.ask(self._now)
        return bool(self._left)

    def _now(self) -> tuple[dict[Operation, str], list[tuple[str, PcpError]]]:
        under_way = {op: op.obstacle for op in self._group.under_way}
        return under_way, list(self._group.failures)


class OpenMember(Protocol):
    """A member that is to be closed before the interpreter is gone."""

    _group: Group

    def close(self, timeout: float | None = None) -> None:
        """Leave."""
        ...


_open: dict[int, OpenMember] = {}


def is_open(member: OpenMember) -> None:
    """Register an open member: if not closed, it leaves at the interpreter's exit."""
    _open[id(member)] = member


def is_closed(member: OpenMember) -> None:
    """Forget a member that has left."""
    _open.pop(id(member), None)


def check_outside(group: Group) -> None:
    """UsageError in the loop's thread, which cannot wait for itself."""
    if group.loop.inside:
        raise UsageError(
            "a callback closes the communicator whose operations end in its thread; "
            "close it in another thread"
        )


@atexit.register
def _leave_all() -> None:
    """Close open members, newest first: subgroups before their worlds."""
    failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    patience = 0.0 if failed is not None else _EXIT_SECONDS
    with ExitStack() as stack:
        for member in _open.copy().values():
            if not member._group.loop.forked:
                stack.callback(member.close, patience)
