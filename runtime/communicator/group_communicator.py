"""The communicator of a group, however the group was made.

`communicator.Communicator` makes the group: of a fixed world, an elastic one, or one
process.
"""

import itertools
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Self

from numpy.typing import NDArray

from pcp.errors import CollectiveAborted, RuntimeFault
from pcp.runtime.collectives.call import Call, Seconds, seconds
from pcp.runtime.collectives.member_context import MemberContext
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.collectives.shared_scratch import SharedScratch
from pcp.runtime.collectives.tracing import Recorder
from pcp.runtime.communicator.collective_methods import Collectives, delegated
from pcp.runtime.communicator.introspection import Observation
from pcp.runtime.communicator.param_sync import (
    Accept,
    SyncReport,
    param_sync,
    wait_for_users,
)
from pcp.runtime.communicator.topology_aware import RingChoice, RingRecord, RingState
from pcp.runtime.group import leaving
from pcp.runtime.group.group import Group
from pcp.runtime.memory.buffer_pool import BufferPool
from pcp.runtime.topology.ring_order import Order
from pcp.wire import Distance


class GroupCommunicator(Collectives):
    """One member of a group. Safe to use from several threads."""

    def __init__(
        self, group: Group, *, timeout: float = 60.0, owned: Sequence[Any] = ()
    ) -> None:
        self.timeout = timeout
        """The time limit in seconds of operations without one of their own."""
        self._group = group
        self._owned: list[Any] = []
        self._context = member_context(group)
        self._syncs = itertools.count()
        self._aside: dict[str, NDArray] = {}
        self._ring_state = RingState()
        self._lock = threading.Lock()
        self._closed = False
        if owned:
            self._own(owned)

    # Facts.

    @property
    def rank(self) -> int:
        """This member's number, from 0."""
        return self._group.rank

    @property
    def world_size(self) -> int:
        """How many members there are."""
        return self._group.world_size

    @property
    def epoch(self) -> int:
        """The epoch of the group; it grows with every group of an endpoint."""
        return self._group.epoch

    @property
    def address(self) -> str | None:
        """The address of this member's listener; None inside one process."""
        found = (getattr(thing, "address", None) for thing in self._owned)
        return next((address for address in found if address), None)

    @property
    def fault(self) -> RuntimeFault | None:
        """The fault that finished the group, such as PeerLost; None while it works."""
        self._group.heard |= self._group.fault is not None
        return self._group.fault

    @property
    def near(self) -> bool:
        """Whether all members are on this machine, and share memory as far as known."""
        return (
            self._context.shared_scratch is not None
            and self._context.shared_scratch.possible
        )

    @property
    def bytes_sent(self) -> int:
        """Bytes this member sent to its peers, headers included."""
        return sum(link.bytes_sent for link in self._group.all_links)

    @property
    def bytes_received(self) -> int:
        """Bytes received from the peers, headers included."""
        return sum(link.bytes_received for link in self._group.all_links)

    # Observation.

    metrics = delegated(Observation, Observation.metrics)
    collect = delegated(Observation, Observation.collect)
    health = delegated(Observation, Observation.health)
    stragglers = delegated(Observation, Observation.stragglers)
    trace = delegated(Observation, Observation.trace)
    clock_offset = delegated(Observation, Observation.clock_offset)
    round_trip = delegated(Observation, Observation.round_trip)

    @property
    def _recorder(self) -> Recorder | None:
        """The recorder of a trace of this member; None without one."""
        return self._group.telemetry.recorder

    @_recorder.setter
    def _recorder(self, recorder: Recorder | None) -> None:
        self._group.telemetry.recorder = recorder

    # Its ring.

    set_ring_order = delegated(RingChoice, RingChoice.set_ring_order)
    optimize_topology = delegated(RingChoice, RingChoice.optimize_topology)

    @property
    def ring_order(self) -> Order:
        """The ranks in the order in which large reductions pass them."""
        return self._context.ring

    @property
    def ring_history(self) -> list[RingRecord]:
        """Every ring order that was set, by time: a replay needs it."""
        return list(self._ring_state.history)

    @property
    def distance(self) -> Distance | None:
        """The distance of the members by which reductions choose their schedule.

        None: near. All members have to be told the same, between two operations.
        """
        return self._context.distance

    @distance.setter
    def distance(self, distance: Distance | None) -> None:
        self._context = replace(self._context, distance=distance)

    @property
    def measured_round_trip(self) -> float:
        """The mean round trip (s) to the peers when their links were made."""
        trips = self._group.health.trips.values()
        return sum(trips) / max(1, len(trips))

    # The state that its members share.

    def param_sync(
        self,
        tensors: Mapping[str, NDArray],
        *,
        revision: int = 0,
        source: int | str = 0,
        timeout: Seconds = None,
        accept: Accept | None = None,
    ) -> SyncReport:
        """Make `tensors` bit-identical on all members; see `param_sync`.

        Operations under way on any of their memory come first. `accept(theirs)` may
        refuse tensors of the source's that differ from this member's, which then stay.
        """
        turn = next(self._syncs)
        patience = self._patience(timeout)
        wait_for_users(self._group, tensors.values(), patience)
        held = self._aside
        return param_sync(self, tensors, revision, source, turn, patience, held, accept)

    # Ending.

    def abort(self, reason: str) -> None:
        """Abort the group on all members: from any thread, at any time.

        Every operation under way and every later one raises CollectiveAborted;
        a committed result stays as it is.
        """
        self._group.loop.check_process()
        self._group.loop.call(self._group.abort, CollectiveAborted(reason))

    def close(self, timeout: Seconds = None) -> None:
        """Leave the group, once earlier operations have happened; the last call.

        Waits for the operations under way here, which need the other members: at most
        `timeout` seconds, by default the communicator's, up to a minute. If some of
        them, or earlier ones, failed and the caller has read none of the failed
        futures, it then raises Timeout, or their fault, and names them.
        With `timeout=0` it neither waits nor raises, and operations under way are
        given up: for a member that has failed. A `with` block that ends with an
        exception leaves so, too. `abort` gives up on all members.
        """
        if self._group.loop.forked:
            return  # the communicator of the parent process
        leaving.check_outside(self._group)
        most = min(self.timeout, leaving.DRAIN_SECONDS)
        patience = most if timeout is None else seconds(timeout)
        with self._lock:
            if self._closed:
                return
            self._closed = True
        last = leaving.Leaving(self._group)
        with ExitStack() as stack:
            stack.callback(self._close)
            if patience > 0:
                last.wait(patience)
        if patience > 0:
            last.check()

    def _crash(self) -> None:
        """Cut all connections as if the process had died; for drills."""
        with self._lock:
            if self._closed or self._group.loop.forked:
                return
            self._closed = True
        self._close(crash=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(timeout=None if kind is None else 0)

    def _own(self, things: Sequence[Any]) -> None:
        """Close these objects, in order, when the communicator closes."""
        self._owned += things
        leaving.is_open(self)

    # Inside.

    def _close(self, crash: bool = False) -> None:
        leaving.is_closed(self)
        self._ring_state.close()
        with ExitStack() as stack:
            for thing in reversed(self._owned):
                stack.callback(thing.close)
            if not self._group.loop.closed:
                self._group.loop.ask(lambda: self._group.close(crash=crash))

    def _patience(self, timeout: Seconds) -> float:
        # Every call begins here: before it takes a lock that a fork may have copied.
        self._group.loop.check_process()
        return self.timeout if timeout is None else seconds(timeout)

    def _start(self, call: Call[Any]) -> Pending:
        operation = call.operation(self._context, self._patience(call.timeout))
        operation.given = call.given
        return self._post(operation, call.label(self._group.rank), call.number())

    def _post(self, operation: Operation, tag: str, turn: int | None = None) -> Pending:
        loop = self._group.loop
        with self._lock:
            # Operations from callbacks belong to the ones under way.
            if loop.closed or (self._closed and not loop.inside):
                operation.release()
                raise CollectiveAborted("this member closed its communicator")
            return self._group.submit(operation, tag, turn)


def member_context(group: Group, pool: BufferPool | None = None) -> MemberContext:
    """The member context for a group, with the scratch pool of an earlier group."""
    shared_scratch = SharedScratch(group)
    return MemberContext(
        group.rank,
        group.world_size,
        pool or BufferPool(),
        shared_scratch=shared_scratch,
    )
