"""Members of a fixed group that reduce, broadcast, meet and leave, as it is drawn.

`Group`, the operations and the barrier are the real ones; connections deliver one
frame at a time, in an order drawn from a seed (`simulated_members.Wire`). Members
leave as `pcp.runtime.group.leaving` does: when nothing of theirs is under way. A few
are killed, and what they sent last may be lost with them.
"""

import heapq
import itertools
from typing import Any, NamedTuple

import numpy as np
from helpers.simulation.event_queues import EventQueues
from helpers.simulation.members import Clock, Wire

from pcp.runtime.collectives.barrier import Barrier
from pcp.runtime.collectives.call import Call
from pcp.runtime.collectives.member_context import MemberContext
from pcp.runtime.collectives.move_calls import Broadcast
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.reduce_calls import AllReduce
from pcp.runtime.group.failure_detector import HeartbeatOptions
from pcp.runtime.group.group import Group

PHASES = 3
MAX_EVENTS = 20_000
SIZES = (3, 20_000)
"""Elements: one array goes with the first frames, one along the ring."""


class Drawn(NamedTuple):
    """A call that all members make."""

    size: int
    """Elements."""
    root: int | None
    """The root of a broadcast; None for a sum."""


class Member:
    """One member and its program: PHASES times reductions and a barrier; it leaves."""

    def __init__(self, world: "Farewells", rank: int, size: int) -> None:
        self.world, self.rank, self.name = world, rank, f"m{rank}"
        self.clock = Clock(world, self.name)
        self.group = Group(self.clock, rank, size, 1, HeartbeatOptions(1e9, 1e9))  # pyright: ignore[reportArgumentType]
        self.context = MemberContext(rank, size)
        self.alive, self.phase = True, 0
        self.reductions: list[tuple[Operation, np.ndarray]] = []
        """The operations and their arrays, in the order of the calls."""
        self.failed = False
        self._seq = itertools.count()

    @property
    def left(self) -> bool:
        """Whether it has said goodbye."""
        return self.group._closed

    def go_on(self) -> None:
        """The next phase: some reductions, then a barrier or the end."""
        for drawn in self.world.calls[self.phase]:
            self._call(drawn)
        self.phase += 1
        if self.phase == PHASES:
            self._leave()
            return
        barrier = Barrier(self.context.peers, 1e9)
        barrier.pending.add_done_callback(self._met)
        self._post(barrier)

    def _call(self, drawn: Drawn) -> None:
        array = np.full(drawn.size, 1 << self.rank, np.int64)
        call: Call = AllReduce(array)
        if drawn.root is not None:
            call = Broadcast(array, drawn.root)
        operation = call.operation(self.context, 1e9)
        self.reductions.append((operation, array))
        self._post(operation)

    def _post(self, operation: Operation) -> None:
        operation.tag, operation.seq = 0, next(self._seq)
        self.group.post(operation)

    def _met(self, pending: Any) -> None:
        if not self.alive:
            return
        self.failed = pending.exception() is not None
        if not self.failed:
            self.world.check_barrier(self)
        then = self._leave if self.failed else self.go_on
        self.world.post(("call", self.name), then)

    def _leave(self) -> None:
        if self.group.in_flight:
            self.world.later(self.name, 0.1, self._leave)
        else:
            self.group.close()


class Farewells(EventQueues):
    """One run; everything follows from the seed."""

    def __init__(
        self, seed: int, *, members: int = 3, kills: int = 0, broadcasts: bool = False
    ) -> None:
        super().__init__(seed)
        self.seed = seed
        self.members = [Member(self, rank, members) for rank in range(members)]
        draw = self.random
        roots = [None, *range(members)] if broadcasts else [None]
        self.calls = [
            [Drawn(draw.choice(SIZES), draw.choice(roots)) for _ in range(many)]
            for many in (draw.randrange(3) for _ in range(PHASES))
        ]
        self.events = 0
        self._kills = sorted(draw.randrange(10, 200) for _ in range(kills))
        for a, b in itertools.combinations(self.members, 2):
            one, two = Wire(self, a.name, b.name, 1), Wire(self, b.name, a.name, 1)
            one.far, two.far = two, one
            a.group.admit(b.rank, one)
            b.group.admit(a.rank, two)

    # The run.

    def run(self) -> "Farewells":
        """To the end; raises what went wrong."""
        for member in self.members:
            self.post(("call", member.name), member.go_on)
        while not all(m.left or not m.alive for m in self.members):
            self.events += 1
            assert self.events < MAX_EVENTS, f"seed {self.seed}: it does not end"
            if self._kills and self.events > self._kills[0]:
                self._kills.pop(0)
                self._kill(self.random.choice(self.members))
            self._turn()
        self._check()
        return self

    def _turn(self) -> None:
        ready = [channel for channel, queue in self._queues.items() if queue]
        if not ready or self.random.random() < 0.05:
            self._pass_time()
            return
        what, owner = self._queues[self.random.choice(ready)].popleft()
        if self._lives(owner):
            what()

    def _pass_time(self) -> None:
        while self._timers and not self._timers[0][2].waits:
            heapq.heappop(self._timers)
        if self._timers and self._timers[0][0] < 1e8:
            self.now, _, timer, owner = heapq.heappop(self._timers)
            if self._lives(owner):
                timer.fire()
            return
        assert any(self._queues.values()), f"seed {self.seed}: nothing goes on"

    def _lives(self, owner: str) -> bool:
        return self.members[int(owner[1:])].alive

    def _kill(self, member: Member) -> None:
        if not member.alive or member.left:
            return
        member.alive = False
        for link in list(member.group.links.values()):
            wire: Any = link
            self.lose(wire._channel)
            wire.close()

    # What must hold.

    def check_barrier(self, member: Member) -> None:
        """Behind a barrier, what any member called before it has happened on all."""
        count = sum(map(len, self.calls[: member.phase]))
        for other in (m for m in self.members if m.alive):
            ended = [operation.over for operation, _ in other.reductions[:count]]
            at = f"seed {self.seed}: past barrier {member.phase} of {member.name}"
            assert ended == [True] * count, f"{at}, {other.name} has {ended}"

    def _check(self) -> None:
        """The living agree about every operation; without deaths all have happened."""
        whole = (1 << len(self.members)) - 1
        calls = list(itertools.chain.from_iterable(self.calls))
        living = [m for m in self.members if m.alive]
        for turn, held in enumerate(zip(*(m.reductions for m in living), strict=False)):
            done = {operation.committed for operation, _ in held}
            told = f"seed {self.seed}: operation {turn}: {done}"
            assert len(done) == 1, told
            assert done == {True} or len(living) < len(self.members), told
            for member, (operation, array) in zip(living, held, strict=True):
                root = calls[turn].root
                result = whole if root is None else 1 << root
                want = result if operation.committed else 1 << member.rank
                assert (array == want).all(), told
