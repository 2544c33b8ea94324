"""A barrier: it ends when all members have reached it, after all earlier operations.

A member opens the barrier when the operations that it called before are over on it. An
operation is over on a member when all members have voted for it, and it is written. So
when all members have opened the barrier, every earlier operation of any of them has
happened on all members, or failed on all; the future of an operation reports that.
"""

from collections.abc import Sequence
from functools import partial

from pcp.errors import RuntimeFault
from pcp.runtime.collectives.agreement import many
from pcp.runtime.collectives.descriptor import FixedDescriptor
from pcp.runtime.collectives.operation import Operation

_DESCRIPTOR = FixedDescriptor(kind="barrier")


class Barrier(Operation):
    """An operation that is over when all members have opened it.

    Among few members without a vote: each sees that all others have opened it.

    A barrier does not wait for other barriers: members may begin those of two tags in
    another order, and each waits for the operations before it anyway. With `pairs`,
    it waits for sends and receives, too.
    """

    def __init__(
        self, peers: Sequence[int], timeout: float, *, pairs: bool = True
    ) -> None:
        super().__init__(peers, _DESCRIPTOR, timeout)
        self.votes = many(peers)
        self._pairs = pairs
        self._behind: set[Operation] = set()

    @property
    def partners(self) -> Sequence[int]:
        return ()

    def announce(self) -> None:
        self._behind = set(filter(self._counts, self.group.under_way))
        for earlier in self._behind:
            earlier.at_end.append(partial(self._passed, earlier))
        self._go_on()

    def on_lost(
        self,
        peer: int,
        error: RuntimeFault,
        *,
        left: bool = False,
        called: bool = True,
    ) -> None:
        """Ignore the loss of a member that has opened it, if that is all it takes."""
        if self.votes or peer not in self.opened:
            super().on_lost(peer, error, left=left, called=called)

    @property
    def obstacle(self) -> str:
        if not self._behind:
            return super().obstacle
        before = ", ".join(sorted(f"{e.title} ({e.obstacle})" for e in self._behind))
        return f"it waits for what was called before it: {before}"

    def _counts(self, earlier: Operation) -> bool:
        return not isinstance(earlier, Barrier) and (earlier.votes or self._pairs)

    def _passed(self, earlier: Operation) -> None:
        self._behind.discard(earlier)
        self._go_on()

    def _go_on(self) -> None:
        if not self._behind and not self.over:
            super().announce()
