"""Whether the programs of all devices, run together, come to their ends.

Each device's function is replayed: a collective posts and waits until every
member of its group has posted its own, a `pcp.start` only posts, a `pcp.wait`
waits for what its start posted, a receive waits for its send, a send is buffered.
When nobody can move and somebody is not done, that is a deadlock. Regions are
replayed once, in the order of the text.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pcp.dialect.base import integer
from pcp.dialect.bindings import ir

Fail = Callable[[ir.Operation, str], None]
Group = frozenset[str]
Key = tuple[object, ...]
CHANNEL = "channel of"  # no device's name has a space


@dataclass(frozen=True)
class Event:
    """What a device does at an op: post one key, wait for others."""

    op: ir.Operation
    posts: tuple[Key, ...] = ()
    waits: tuple[tuple[Key, int], ...] = ()


@dataclass
class Replay:
    """The devices' events, and how far each one is."""

    events: Mapping[str, Sequence[Event]]
    posted: Counter[Key] = field(default_factory=Counter)
    place: dict[str, int] = field(default_factory=dict)

    def run(self) -> dict[str, Event]:
        """Move all devices as far as they go; what each unfinished one waits at."""
        self.place = dict.fromkeys(self.events, 0)
        for device in self.events:
            self._post(device)
        while any([self._advance(device) for device in self.events]):
            pass
        return {
            device: events[self.place[device]]
            for device, events in self.events.items()
            if self.place[device] < len(events)
        }

    def missing(self, event: Event) -> list[Key]:
        """What an event waits for and has not come."""
        return [key for key, count in event.waits if self.posted[key] < count]

    def _advance(self, device: str) -> bool:
        events, moved = self.events[device], False
        while self.place[device] < len(events):
            if self.missing(events[self.place[device]]):
                return moved
            self.place[device] += 1
            self._post(device)
            moved = True
        return moved

    def _post(self, device: str) -> None:
        if self.place[device] < len(self.events[device]):
            self.posted.update(self.events[device][self.place[device]].posts)


def check_deadlock(
    programs: Mapping[str, Sequence[ir.Operation]],
    group_of: Callable[[ir.Operation, str], set[str]],
    fail: Fail,
) -> None:
    """Call `fail` at an op that waits for ever.

    `programs` holds the communicating ops of one function on each device, in
    order; `group_of(op, device)` the devices that run a collective together.
    """
    events = {d: events_of(ops, d, group_of) for d, ops in programs.items()}
    stuck = Replay(_without_outside(events)).run()
    if not stuck:
        return
    device = min(stuck)
    where = "; ".join(
        f"@{other} is at {event.op.name}" for other, event in stuck.items()
    )
    fail(stuck[device].op, f"waits for ever on @{device}: {where}")


def _without_outside(
    events: Mapping[str, Sequence[Event]],
) -> dict[str, list[Event]]:
    """Leave out waiting for channels whose send is in another function."""
    posts = {key for items in events.values() for e in items for key in e.posts}

    def comes(key: Key) -> bool:
        return key[0] != CHANNEL or key in posts

    return {
        device: [
            replace(e, waits=tuple(w for w in e.waits if comes(w[0]))) for e in items
        ]
        for device, items in events.items()
    }


def events_of(
    ops: Sequence[ir.Operation],
    device: str,
    group_of: Callable[[ir.Operation, str], set[str]],
) -> list[Event]:
    """The events of one device. A group's collectives are counted as they come."""
    events: list[Event] = []
    counts: Counter[Group] = Counter()
    started: dict[ir.Value, list[tuple[Key, int]]] = {}
    for op in ops:
        if op.name == "pcp.send":
            events.append(Event(op, posts=((CHANNEL, integer(op, "channel")),)))
        elif op.name == "pcp.recv":
            channel = (CHANNEL, integer(op, "channel"))
            events.append(Event(op, waits=((channel, 1),)))
        elif op.name == "pcp.wait":
            events.append(Event(op, waits=tuple(started.get(op.operands[0], ()))))
        elif group := frozenset(group_of(op, device)):
            counts[group] += 1
            key = (*sorted(group), counts[group])
            needed = (key, len(group))
            start = op.parent and op.parent.operation
            if start is not None and start.name == "pcp.start":
                started.setdefault(start.results[0], []).append(needed)
                events.append(Event(op, posts=(key,)))
            else:
                events.append(Event(op, posts=(key,), waits=(needed,)))
    return events
