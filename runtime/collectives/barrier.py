"""A barrier: nothing but everybody's presence, behind all that was called before it.

A member says that it is there when what it called before the barrier is over here.
An operation is over here when all members have voted for it, and it is written. So
when all are there, whatever any of them called before has happened on all of them, or
on none where it failed; whose it was hears that from its own future.
"""

from collections.abc import Sequence
from functools import partial

from pcp.errors import RuntimeFault
from pcp.runtime.collectives.operation import Operation


class Barrier(Operation):
    """Over when all members have come; nobody needs to vote on that.

    It is not behind other barriers: members may begin those of two tags in another
    order, and each is behind the operations before it anyway. With `pairs`, sends and
    receives count, too.
    """

    votes = False

    def __init__(
        self, peers: Sequence[int], timeout: float, *, pairs: bool = True
    ) -> None:
        super().__init__(peers, {"kind": "barrier"}, timeout)
        self._pairs = pairs
        self._behind: set[Operation] = set()

    def announce(self) -> None:
        self._behind = set(filter(self._counts, self.group.under_way))
        for earlier in self._behind:
            earlier.at_end.append(partial(self._passed, earlier))
        self._go_on()

    def on_lost(self, peer: int, error: RuntimeFault) -> None:
        """Who came and went again was here: that is all a barrier asks."""
        if peer not in self.opened:
            super().on_lost(peer, error)

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
