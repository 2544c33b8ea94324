"""An elastic group in one thread, under a scheduler that knows no mercy.

The state machine (`Membership`), the members' side of it (`Agent`), the groups
and their operations are the real ones. Simulated are the connections (queues in
order, delivered one frame at a time in an order drawn from a seed), the time,
and the making of a group's connections. Members and the coordinator are killed
at drawn moments, connections between the living break; members are also frozen,
which only the coordinator notices, and some of them wake up after that.

Every member works through the same steps. A step reduces one number a member, a
power of two of its own, so that a sum says whose inputs are in it.
"""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from helpers.simulation.event_queues import EventQueues
from helpers.simulation.members import Node, Wire

from pcp.runtime.group.membership import Membership, Past, SendMessage
from pcp.runtime.transport.event_loop import Timer

MAX_EVENTS = 60_000
COORDINATOR = ""


class Stuck(AssertionError):
    """Nothing more happens, or too much, and the members have not finished."""


@dataclass
class Simulation(EventQueues):
    """One run; everything follows from the seed."""

    seed: int
    members: int = 3
    steps: int = 4
    newcomers: int = 1
    kills: int = 2
    restarts: int = 1
    cuts: int = 1
    leaves: int = 0
    """Members that close while the others go on."""
    barriers: bool = False
    """Whether each reduction has a barrier behind it."""
    slow: bool = False
    """Whether one member hears everything late, now one and now another."""
    events: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)
    epochs: dict[int, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        EventQueues.__init__(self, self.seed)
        # As many as are left, whoever dies before there is a group.
        self.first = max(1, self.members - self.kills)
        self._state: Membership | None = Membership(first=self.first)
        self._generation = 0
        self._overdue: list[tuple[Timer, str]] = []
        self._pairs: set[tuple[int, str, str]] = set()

    @property
    def without_coordinator(self) -> bool:
        """Whether nobody listens at its address."""
        return self._state is None

    # Events.

    def run(self) -> "Simulation":
        """To the end, with faults at drawn moments; raises what went wrong."""
        faults = sorted(
            self.random.randrange(20, 400)
            for _ in range(self.kills + self.restarts + self.cuts + self.leaves)
        )
        kinds = ["kill"] * self.kills + ["restart"] * self.restarts
        kinds += ["cut"] * self.cuts + ["leave"] * self.leaves
        self.random.shuffle(kinds)
        plan = deque(zip(faults, kinds, strict=True))
        for index in range(self.members + self.newcomers):
            node = Node(self, index)
            self.nodes[node.name] = node
            self.later(node.name, self.random.random(), node.connect)
        while not self.finished:
            if plan and self.events >= plan[0][0]:
                self._fault(plan.popleft()[1])
            self._turn()
        self.check()
        return self

    @property
    def finished(self) -> bool:
        return all(n.done for n in self.nodes.values() if n.alive and not n.frozen)

    def _turn(self) -> None:
        self.events += 1
        if self.events > MAX_EVENTS:
            raise Stuck(f"seed {self.seed}: too many events; {self._where()}")
        ready = [c for c, q in self._queues.items() if q and not self._asleep(q)]
        if not ready or (self._timers and self.random.random() < 0.02):
            self._pass_time()
            return
        channel = self.random.choice(self._favoured(ready))
        what, owner = self._queues[channel].popleft()
        node = self.nodes.get(owner)
        if node is None or node.alive:
            what()

    def _favoured(self, ready: list) -> list:
        """Channels of which one is served next."""
        if not self.slow or self.random.random() < 0.1:
            return ready
        late = f"m{self.events // 50 % self.members}"
        return [c for c in ready if self._queues[c][0][1] != late] or ready

    def _asleep(self, queue: deque) -> bool:
        node = self.nodes.get(queue[0][1])
        return node is not None and node.frozen

    def _pass_time(self) -> None:
        if not self._timers:
            raise Stuck(f"seed {self.seed}: nothing to do; {self._where()}")
        if self._timers[0][0] > 1e8 and any(self._queues.values()):
            return
        when, _, timer, owner = heapq.heappop(self._timers)
        if when > 1e8:
            raise Stuck(f"seed {self.seed}: only deadlines are left; {self._where()}")
        self.now = when
        node = self.nodes.get(owner)
        if node is not None and node.frozen:
            self._overdue.append((timer, owner))
        elif node is None or node.alive:
            timer.fire()

    def _where(self) -> str:
        state = self._state
        members = ", ".join(
            f"{n.name}: step {n.step} epoch {n.agent.epoch} voting {n.agent.voting}"
            for n in self.nodes.values()
            if n.alive
        )
        return f"{state and (state.phase, state.epoch, state.group)}; {members}"

    # Faults.

    def _fault(self, kind: str) -> None:
        if kind == "restart":
            self._restart()
            return
        if kind == "cut":
            self._cut()
            return
        able = [n for n in self.nodes.values() if n.alive and not n.frozen and n.linked]
        if len(able) < 2:
            return
        node = self.random.choice(able)
        if kind == "leave":
            node.leaving = True
            return
        if self.random.random() < 0.3:
            node.frozen = True
            thaws = self.random.random() < 0.5
            self.later(COORDINATOR, 5.0, lambda: self._silent(node, thaws))
            if thaws:
                delay = self.random.uniform(1, 15)
                self.later(COORDINATOR, delay, lambda: self._thaw(node))
        else:
            self.end(node)

    def _cut(self) -> None:
        """A connection between two living members breaks, and loses some frames."""
        wires = [
            link
            for node in self.nodes.values()
            if node.alive and not node.frozen and node.agent.group is not None
            for link in node.agent.group.links.values()
            if link.alive
        ]
        if not wires:
            return
        wire: Any = self.random.choice(wires)
        for end in (wire, wire.far):
            self.lose(end._channel)
        for end in (wire, wire.far):
            self.post(end._channel, end.far.end, end.far._here)

    def _silent(self, node: Node, thaws: bool) -> None:
        """A frozen member is cut off by the coordinator; some wake up later."""
        if not node.alive or not node.frozen:
            return
        if not thaws:
            self.end(node)
        elif node.linked:
            node.linked = False
            self._queues.pop((COORDINATOR, node.name), None)
            if self._state is not None:
                self._tell(self._state.died(node.name))

    def _thaw(self, node: Node) -> None:
        """It goes on where it was, and finds its connection gone if it took long."""
        node.frozen = False
        for timer, owner in self._overdue:
            if owner == node.name:
                self.post(("call", owner), timer.fire)
        self._overdue = [entry for entry in self._overdue if entry[1] != node.name]
        if node.alive and not node.linked:
            node.connect()

    def end(self, node: Node) -> None:
        """A member dies; some of what it sent last is lost with it."""
        if not node.alive:
            return
        node.alive = False
        for group in self._groups_of(node):
            for link in list(group.links.values()):
                if self._queues.get(link._channel):
                    self.lose(link._channel)
                link.close()
        self._gone(node)

    def leaves_now(self, node: Node) -> None:
        """A member says goodbye; what it said before is heard."""
        if not node.alive:
            return
        node.left, node.alive = True, False
        for group in self._groups_of(node):
            assert group.idle, "it leaves when nothing of its own is under way"
            group.close()
        self._gone(node)

    def _groups_of(self, node: Node) -> list[Any]:
        groups = (node.agent.group, node.agent.formed, node.forming)
        return [group for group in groups if group is not None]

    def _gone(self, node: Node) -> None:
        for other in self.nodes.values():
            group = other.forming
            if other.alive and group is not None and node.name in other._facts["names"]:
                epoch = group.epoch
                self.post(
                    ("call", other.name),
                    lambda other=other, epoch=epoch: other.agent.has_not_formed(
                        epoch, [node.name]
                    ),
                )
        self._lost_control(node)

    def _lost_control(self, node: Node) -> None:
        if node.linked:
            node.linked = False
            self.later(COORDINATOR, 5.0, lambda: self._declare(node.name))

    def _declare(self, name: str) -> None:
        node = self.nodes[name]
        if self._state is not None and not node.linked:
            self._tell(self._state.died(name))

    def _restart(self) -> None:
        """The coordinator dies and another takes its place."""
        self._generation += 1
        generation = self._generation
        self._state = None
        for channel, queue in self._queues.items():
            if COORDINATOR in channel:
                queue.clear()
        for node in self.nodes.values():
            was, node.linked = node.linked, False
            if node.alive and was:
                self.later(node.name, 1 + self.random.random(), node.connect)

        def back() -> None:
            if generation != self._generation:
                return  # that one was killed before it came
            self._state = state = Membership(
                first=self.first, incarnation=generation, settled=False
            )
            self.later(COORDINATOR, 3.0, lambda: self._settle(state))
            # Who does not come back in time is dead.
            self.later(COORDINATOR, 10.0, lambda: self._roll_call(generation))

        self.later(COORDINATOR, 0.5, back)

    def _settle(self, state: Membership) -> None:
        if state is self._state:
            self._tell(state.settle())

    def _roll_call(self, generation: int) -> None:
        if generation == self._generation and self._state is not None:
            for name in list(self._state.members):
                if not self.nodes[name].linked:
                    self._tell(self._state.died(name))

    # Control messages.

    def to_coordinator(self, name: str, what: str, facts: dict[str, Any]) -> None:
        self.post((name, COORDINATOR), lambda: self._hear(name, what, facts), "-")

    def _hear(self, name: str, what: str, facts: dict[str, Any]) -> None:
        state = self._state
        if state is None:
            return
        if what == "hello":
            past: Past = facts["past"]
            self._tell(state.resume(name, name, past))
            return
        if name not in state.members:
            return
        key = tuple(facts.get("key", ()))
        match what:
            case "vote":
                sends = state.vote(name, broken=facts["broken"])
            case "formed":
                sends = state.formed(name, facts["epoch"])
            case "failed":
                sends = state.failed(name, facts["epoch"], facts["lost"])
            case "ask":
                sends = state.ask(name, facts["epoch"], key)
            case "answer":
                sends = state.answer(name, facts["epoch"], key, facts["done"])
            case _:
                raise AssertionError(what)
        self._tell(sends)

    def _tell(self, sends: list[SendMessage]) -> None:
        for send in sends:
            node = self.nodes[send.to]
            if not node.linked:
                continue
            if send.what == "prepare":
                names = self.epochs.setdefault(
                    send.facts["epoch"], list(send.facts["names"])
                )
                assert names == send.facts["names"], "an epoch with two groups"
            self.post(
                (COORDINATOR, send.to),
                lambda node=node, send=send: (
                    node.agent.hear(send.what, dict(send.facts))
                    if node.linked
                    else None
                ),
                send.to,
            )

    # Connections of a group.

    def connect_group(self, epoch: int, names: list[str]) -> None:
        """Join all pairs of which both ends have prepared the epoch."""
        for a, b in itertools.combinations(names, 2):
            first, second = self.nodes[a], self.nodes[b]
            ready = all(
                n.alive and n.forming is not None and n.forming.epoch == epoch
                for n in (first, second)
            )
            if ready and (epoch, a, b) not in self._pairs:
                self._pairs.add((epoch, a, b))
                one, two = Wire(self, a, b, epoch), Wire(self, b, a, epoch)
                one.far, two.far = two, one
                assert first.forming is not None
                assert second.forming is not None
                first.forming.admit(names.index(b), one)
                second.forming.admit(names.index(a), two)
                for node in (first, second):
                    self.post(("call", node.name), node.check_formed)
        for name in names:
            if not self.nodes[name].alive:
                for other in names:
                    node = self.nodes[other]
                    if node.alive and node.forming is not None:
                        self.post(
                            ("call", other),
                            lambda node=node, name=name: node.agent.has_not_formed(
                                epoch, [name]
                            ),
                        )

    # What must hold.

    def check(self) -> None:
        """One outcome an operation, among its epoch's members, with all inputs."""
        bits = {n.name: n.bit for n in self.nodes.values()}
        seen: dict[tuple, dict[str, int | None]] = {}
        for node in self.nodes.values():
            for outcome in node.outcomes:
                at = (outcome.epoch, outcome.key)
                seen.setdefault(at, {})[node.name] = outcome.value
        for (epoch, key), by_name in seen.items():
            whole = sum(bits[name] for name in self.epochs[epoch])
            values = set(by_name.values()) - {None}
            assert values <= {whole}, f"seed {self.seed}: {epoch} {key}: {by_name}"
            # Also who dies later takes its outcome into the next epoch.
            on = {n for n in self.epochs[epoch] if self.nodes[n].entered > epoch}
            stay = {n for n in by_name if self.nodes[n].alive or self.nodes[n].left}
            alive = stay | on
            split = {by_name.get(n) is None for n in alive}
            assert len(split) < 2, f"seed {self.seed}: {epoch} {key}: {by_name}"
            if values:
                aborted = [n for n in alive if by_name.get(n) is None]
                assert not aborted, f"seed {self.seed}: {epoch} {key}: {by_name}"
