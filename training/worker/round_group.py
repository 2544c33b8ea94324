"""The groups of a round: the members', which share one state, and an island's.

A rank of an island is in one group of the round, that of the ranks at its coordinate of
all islands, and in groups inside its island (`pcp.training.worker.island_groups`):

    steps     for the inner steps: they outlive a change of the other islands
    outside   for the work after the exchange with others, which is repeated with it

Among islands of unlike shape the group of the round is that of the rank's rings
(`pcp.runtime.program.piece_rings`): no other island has a rank with the same part.

An exchange may succeed at one coordinate and fail at another. Operations of a rank that
has gone on must not match those of a rank that repeats its exchange in a later attempt.
"""

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Literal

import numpy as np

from pcp.errors import CollectiveAborted, PeerLost, RuntimeFault
from pcp.mesh import WORKERS
from pcp.runtime import fetch_snapshot
from pcp.runtime.program.piece_rings import PieceRings
from pcp.training.storage import safetensors_io
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import SHARED
from pcp.training.trainer.norms import within_rounding
from pcp.training.wire.message import (
    Message,
)
from pcp.training.wire.messages import (
    AwaitedRanks,
    RoundStart,
)
from pcp.training.worker.island_groups import IslandGroups
from pcp.training.worker.orders_over import first_valid
from pcp.training.worker.whereabouts import Place
from pcp.training.worker.worker_state import WorkerState
from pcp.wire import Distance

SILENCE_SECONDS = 10.0
"""A holder of a state that sends no data of it for so many seconds counts as dead."""
_ANEW = "the ranks of the island begin anew"


class RoundGroup:
    """Forms groups; `timeout` (seconds of one exchange) comes with the `Welcome`."""

    def __init__(
        self,
        state: WorkerState,
        endpoint: Any,
        *,
        place: Place,
        send: Callable[[Message], None],
        log: Callable[[str], None],
    ) -> None:
        self._state, self._endpoint, self._place = state, endpoint, place
        self._send, self._log = send, log
        self.timeout = 60.0
        self._comm: Any = None
        self._scopes = [""]
        """The scopes of the groups of the round."""
        self._floor = 0
        """The epoch below which no group is formed any more."""
        self._ordered = -1
        """The epoch of the newest order; -1: there was none."""
        self._inner = -1
        """The inner epoch of that order."""
        self.validates = False
        """Whether held-out batches are to be evaluated: no order ends that."""
        self._steps = IslandGroups(state, endpoint, "steps of an island")
        self._outside = IslandGroups(state, endpoint, "exchange of an island")
        self._counted = (0, 0)
        self._fetched = 0
        """Bytes of states, fetched and sent, since the last report."""

    def heed(self, message: Message) -> None:
        """Abort exchanges that a message makes pointless; from the link's thread."""
        self.abandon(first_valid(message, self._ordered))
        if isinstance(message, RoundStart):
            self._ordered, self._inner = message.epoch, message.inner_epoch
            if not self.validates:
                self._steps.abandon(_ANEW, self._inner)
        else:  # the island is formed anew, restores a state, or ends
            self._steps.abandon(_ANEW, self._inner + 1)
            self._outside.abandon(_ANEW, self._ordered + 1)

    def abandon(self, epoch: int) -> None:
        """Abort exchanges of groups before `epoch`; from any thread."""
        reason = f"the group of epoch {epoch} takes over"
        # Before the scopes and the communicator are read: see `_formed` and `form`.
        self._floor = max(self._floor, epoch)
        comm = self._comm
        for scope in self._scopes:
            self._endpoint.cancel(reason, below=epoch, scope=scope)
        if comm is not None and comm.epoch < epoch:
            comm.abort(reason)
        self._outside.abandon(reason, epoch)

    @property
    def groups(self) -> Any:
        """The groups of inner steps: the group of the round, and a rank's by axes."""
        return self._with(self._steps)

    @property
    def of_island(self) -> bool:
        """Whether this worker is in groups inside an island."""
        return self._steps.epoch is not None

    @property
    def groups_outside(self) -> Any:
        """The groups of the outer step."""
        return self._with(self._outside)

    def _with(self, inside: IslandGroups) -> Any:
        if inside.epoch is None:
            return self._comm
        return {WORKERS: self._comm} | inside.by_axes

    @property
    def failed_inside(self) -> bool:
        """Whether a group inside the island is broken, or could not be formed."""
        return self._steps.failed or self._outside.failed

    def awaited(self) -> AwaitedRanks | Literal[False] | None:
        """The ranks that have not come to the call under way; False without one.

        In a call among ranks of the island no rank of another one is awaited. None: it
        is not known.
        """
        found = self._endpoint.awaited()
        if found is None:
            return None
        for scope in self._scopes:
            if said := found.get(scope):
                return AwaitedRanks(ranks=[*said.ranks], seconds=said.seconds)
        return AwaitedRanks(ranks=[], seconds=0.0) if found else False

    def agree(self, shared: Arrays, revision: int) -> bool:
        """Ranks of an island with the same elements take the bits of the first one.

        Whether any of this rank's changed.

        Each coordinate sums over the islands in its own order, and sums of floats in
        different orders differ.
        """
        if self._outside.epoch is None:
            return False
        parts, changed = self._state.trainer.parts, False
        for along, names in sorted(parts.copies(list(shared)).items()):
            held = {name: shared[name] for name in names}
            group = self._outside.by_axes[",".join(along)]
            report = group.param_sync(held, revision=revision, source=0)
            changed |= bool(report.updated)
            shared |= held
        return changed

    def form(self, order: RoundStart) -> Any:
        """The communicator of the order's epoch; its members share one state."""
        self._steps.form(order, order.inner_epoch, self.timeout)
        if self._comm is not None and self._comm.epoch == order.epoch:
            if not order.shapes:
                self._comm.distance = order.distance and Distance(*order.distance)
            return self._comm
        self._leave()
        comm = self._formed(order)
        comm.timeout = self.timeout
        if not order.shapes:  # else its rings are small
            comm.distance = order.distance and Distance(*order.distance)
        self._comm, self._counted = comm, (0, 0)
        self._check_valid(order)
        self._outside.form(order, order.epoch, self.timeout)
        state, before = self._state, order.round - 1
        held = state.committed
        arrays = self._newest_state(order)
        accept = partial(self._right, order, arrays)
        report = comm.param_sync(arrays, revision=before, source=0, accept=accept)
        if report.refused:
            raise PeerLost(
                f"rank 0 holds another state of round {before} than was committed",
                peer=0,
            )
        updated = bool(report.updated)
        if order.shapes:  # the ranks that own no copy get its bits in their island
            updated |= self.agree(arrays, before)
        if updated and not order.carried:
            self._log(f"caught up with round {before} inside the group")
        if updated or state.committed != before:
            self._take(order, arrays)
        if state.committed != held:
            self._send(state.ready())
        self._place.enter("forming")
        return comm

    def _check_valid(self, order: RoundStart) -> None:
        """`CollectiveAborted` for an order that is over by now."""
        if order.epoch < self._floor:
            raise CollectiveAborted("a newer epoch has begun")

    def _formed(self, order: RoundStart) -> Any:
        """The group of the members, or this rank's rings with their ranks."""
        shapes, me = self._state.shapes, self._state.rank
        if not order.shapes or shapes is None:
            self._scopes = [""]
            return self._endpoint.form(
                order.epoch, order.members, order.rank, self.timeout
            )
        present, rest = sorted(set(order.shapes)), iter(order.members)
        islands = [[*islice(rest, shapes[shape].parts.size)] for shape in order.shapes]
        at = present.index(me.shape)
        mine = [r for r in shapes.rings(present) if r[at] == me.coordinate]
        self._scopes = [f"ring {present} {ring}" for ring in mine]
        self._check_valid(order)
        groups = {}
        for ring, scope in zip(mine, self._scopes, strict=True):
            members = [
                ranks[ring[present.index(shape)]]
                for shape, ranks in zip(order.shapes, islands, strict=True)
            ]
            groups[ring] = self._endpoint.form(
                order.epoch, members, order.rank, self.timeout, scope=scope
            )
        return PieceRings(
            groups,
            partial(shapes.reduced, place=me, present=present),
            partial(shapes.owned_along, place=me, present=present),
            partial(shapes.put, place=me),
        )

    @property
    def round_trip(self) -> float:
        """The mean round trip (s) to the members of the round's group."""
        return getattr(self._comm, "measured_round_trip", 0.0)

    def moved_bytes(self) -> tuple[int, int]:
        """Bytes that were sent and received since the last call."""
        now, before = (self._comm.bytes_sent, self._comm.bytes_received), self._counted
        # The bytes that this worker fetched were sent by another one.
        fetched, self._fetched, self._counted = self._fetched, 0, now
        return now[0] - before[0] + fetched, now[1] - before[1] + fetched

    def close(self) -> None:
        """Leave all groups, and with them exchanges under way."""
        self._leave()
        self._steps.close()
        self._outside.close()

    def _leave(self) -> None:
        if self._comm is not None:
            self._comm.close(timeout=0)
            self._comm = None

    def _take(self, order: RoundStart, arrays: Arrays) -> None:
        """Hold the group's state from now on."""
        self._place.enter("restoring")
        state, before = self._state, order.round - 1
        if order.carried:
            state.catch_up(before, arrays)
            return
        if state.dirty:  # inner steps of a round that went on without this worker
            state.undo_inner_steps()
        state.trainer.adopt(arrays)
        state.hold(before)

    def _right(self, order: RoundStart, mine: Arrays, theirs: Arrays) -> bool:
        """Whether the state of rank 0, with these tensors, is the run's.

        Its digest must be the order's; without one, it must be this worker's but for
        rounding, if this worker holds the state.
        """
        if order.digest is not None:
            return safetensors_io.digest(mine | theirs) == order.digest
        if self._state.committed != order.round - 1:
            return True
        return within_rounding(theirs, mine, mine)

    def _newest_state(self, order: RoundStart) -> Arrays:
        """The shared state; rank 0 fetches that of the round before if it lacks it."""
        state, before = self._state, order.round - 1
        mine = {k: np.array(v) for k, v in state.trainer.shared.items()}
        if order.rank or order.source is None:
            return mine
        wanted = order.digest
        if state.committed == before and wanted in (
            None,
            safetensors_io.digest(mine),
        ):
            return mine
        self._place.enter("restoring")
        revision, arrays = fetch_snapshot(
            order.source,
            self.timeout,
            only=SHARED,
            silence=SILENCE_SECONDS,
            key=self._endpoint.key,
            tls=self._endpoint.tls,
        )
        if revision != before or (wanted and safetensors_io.digest(arrays) != wanted):
            raise RuntimeFault(f"{order.source} holds another state of round {before}")
        self._fetched += sum(array.nbytes for array in arrays.values())
        state.catch_up(before, arrays)
        self._place.enter("forming")
        return {k: np.array(v) for k, v in arrays.items()}
