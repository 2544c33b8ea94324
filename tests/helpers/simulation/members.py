"""The parts of a simulated elastic group: time, connections, members.

Used by `membership_simulation`; see there. `Group`, `Operation` and `MembershipClient`
are the real ones.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from helpers.simulation.event_queues import EventQueues

from pcp.errors import PeerLost
from pcp.runtime.collectives.barrier import Barrier
from pcp.runtime.collectives.member_context import MemberContext
from pcp.runtime.collectives.reduce_calls import AllReduce
from pcp.runtime.group.group import Group, HeartbeatOptions
from pcp.runtime.group.membership_client import MembershipClient
from pcp.runtime.transport.event_loop import Loop, Timer
from pcp.runtime.transport.frame import Frame, Header

if TYPE_CHECKING:
    from helpers.simulation.membership import Simulation


class Clock:
    """What `Group` and `Operation` need of a loop, in simulated time."""

    suspended = False
    closed = False
    expecting = 0
    driver = None

    def __init__(self, world: EventQueues, name: str) -> None:
        self._world, self._name = world, name

    def call(self, what: Callable[..., None], *args: Any) -> None:
        self._world.post(("call", self._name), lambda: what(*args))

    def later(self, delay: float, what: Callable[[], None]) -> Timer:
        return self._world.later(self._name, delay, what)

    def ask(self, what: Callable[[], Any]) -> Any:
        return what()


class Wire:
    """One end of a connection between two members; see `link.Link`."""

    def __init__(self, world: EventQueues, here: str, there: str, epoch: int) -> None:
        self.label, self.epoch = there, epoch
        self.sink: Any = None
        self.last_heard = self.last_sent = float("inf")
        self.bytes_sent = self.bytes_received = 0
        self.alive = True
        self.far: Wire
        self.round_trip = 0.1 * (world.random.random() < 0.5)
        self._world, self._here = world, here
        self._channel = (here, there, epoch)

    def send(self, frame: Frame) -> None:
        if not self.alive:
            return
        payload = bytes(frame.payload)
        header = Header(
            frame.kind, self.epoch, frame.tag, frame.seq, frame.step, frame.offset,
            len(payload), 0,
        )  # fmt: skip
        far = self.far
        self._world.post(self._channel, lambda: far.receive(header, payload), far._here)
        if frame.on_sent is not None:
            self._world.post(("call", self._here), frame.on_sent)

    def receive(self, header: Header, payload: bytes) -> None:
        if not self.alive:
            return
        room = memoryview(bytearray(0))
        if payload:
            room = self.sink.place(self, header)
            room[:] = payload
        self.sink.deliver(self, header, room)

    def recall(self, tag: int, seq: int) -> None:
        pass

    def exhaust(self) -> None:
        """Some of what is under way has arrived, it is drawn how much."""
        self._world.hurry(self.far._channel)

    def close(self, *, flush: float = 0.0) -> None:
        if self.alive:
            self.alive = False
            far = self.far
            self._world.post(self._channel, far.end, far._here)

    def sever(self) -> None:
        self.close()

    def end(self) -> None:
        if self.alive:
            self.alive = False
            self.sink.lost(self, PeerLost(f"{self.label} closed the connection"))


@dataclass
class Outcome:
    """What became of one operation on one member."""

    epoch: int
    key: tuple[int, int]
    value: int | None
    """The sum, or None when it was aborted."""


class Node:
    """A member and its program."""

    def __init__(self, world: "Simulation", index: int) -> None:
        self.world, self.name, self.bit = world, f"m{index}", 1 << index
        self.clock = Clock(world, self.name)
        self.agent = MembershipClient(self.name, self._say, self._renewal)
        self.step = -1
        """Steps that are done; -1 before the first agreement on it."""
        self.outcomes: list[Outcome] = []
        self.alive = True
        self.leaving = self.left = False
        """Whether it closes when what it called is over, and has."""
        self.frozen = False
        self.expelled = False
        self.linked = False
        self.forming: Group | None = None
        self._facts: dict[str, Any] = {}
        self._seq = itertools.count()
        self.entered = 0
        """The last epoch in which its program went on."""
        self._asked = (-1, -1)

    @property
    def done(self) -> bool:
        return self.step >= self.world.steps

    # Membership.

    def _say(self, what: str, facts: dict[str, Any]) -> None:
        if self.linked:
            self.world.to_coordinator(self.name, what, facts)

    def connect(self) -> None:
        """Say hello to the coordinator, first or again."""
        if self.world.without_coordinator:
            self.world.later(self.name, 0.3, self.connect)
            return
        self.linked = True
        past = self.agent.past()
        self.world.to_coordinator(self.name, "hello", {"past": past})
        self.agent.ask_again()

    def _renewal(self, what: str, facts: dict[str, Any]) -> None:
        if what == "refused":
            self.expelled = True
            self.world.end(self)
        elif what == "prepare":
            self._prepare(facts)
        elif facts["epoch"] == self.agent.epoch != self.entered:
            self.entered = self.agent.epoch
            self._seq = itertools.count()
            self._agree()
        elif facts["epoch"] == self.agent.epoch:
            self._next()

    def _prepare(self, facts: dict[str, Any]) -> None:
        for group in (self.agent.group, self.forming):
            if group is not None:
                group.close()
        names = facts["names"]
        self._facts = facts
        # It has no thread and no sockets, and is all that a group asks of a loop.
        loop = cast(Loop, self.clock)
        rank, heartbeat = names.index(self.name), HeartbeatOptions(1e9, 1e9)
        self.forming = Group(loop, rank, len(names), facts["epoch"], heartbeat)
        self.world.connect_group(facts["epoch"], names)
        self.check_formed()

    def check_formed(self) -> None:
        group = self.forming
        if group is not None and len(group.links) == group.world_size - 1:
            self.forming = None
            names = self._facts["names"]
            self.agent.has_formed(group, names, self._facts["addresses"])

    # The program: agree on the step, then reduce, step by step.

    def _agree(self) -> None:
        def then(value: np.ndarray) -> None:
            self.step = int(value[0])
            self._next()

        self._reduce(np.array([max(self.step, 0)]), "max", then)

    def _next(self) -> None:
        if self.step % 2 == 1 and self._asked != (self.step, self.agent.epoch):
            self._asked = (self.step, self.agent.epoch)
            self.agent.vote()
        elif not self.done:

            def then(value: np.ndarray) -> None:
                self.step += 1
                self._next()

            self._reduce(np.array([self.bit]), "sum", then)
        else:  # others may still wait to come in
            self.world.later(self.name, 1.0, self.agent.vote)

    def _reduce(self, array: np.ndarray, op: str, then: Callable) -> None:
        group = self.agent.group
        assert group is not None
        context = MemberContext(group.rank, group.world_size)
        operation = AllReduce(array, op).operation(context, 1e9)
        operation.tag, operation.seq = 0, next(self._seq)
        key = (0, operation.seq)
        barrier = Barrier(context.peers, 1e9)
        wanted = [operation]
        if self.world.barriers:
            barrier.tag, barrier.seq = 0, next(self._seq)
            wanted.append(barrier)
        before = array.copy()

        def over(pending: Any) -> None:
            if not self.alive:
                return
            error = pending.exception()
            value = int(array[0]) if error is None else None
            if op == "sum":
                self.outcomes.append(Outcome(group.epoch, key, value))
            if error is not None:
                assert np.array_equal(array, before), "an abort changed the input"

        def all_over(pending: Any) -> None:
            if pending is barrier.pending and pending.exception() is None:
                assert operation.over, "a barrier overtook what was called before it"
            if not self.alive or not all(posted.over for posted in wanted):
                return
            what = (lambda: then(array)) if operation.committed else self._renew
            if self.leaving:
                what = partial(self.world.leaves_now, self)
            self.world.post(("call", self.name), what)

        operation.pending.add_done_callback(over)
        for posted in wanted:
            posted.pending.add_done_callback(all_over)
        for posted in wanted:
            group.post(posted)

    def _renew(self) -> None:
        assert self.agent.group is not None
        assert self.agent.group.idle
        self.agent.vote()
