"""The workers of a run, and the state that each of them holds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pcp.training.coordinator.events import Peer
from pcp.training.coordinator.guards.progress_guard import Pace
from pcp.training.wire.messages import (
    Hello,
    Prepared,
)
from pcp.wire import FAR_SECONDS, Distance

# States of a member, in their order.
COMPILING = "compiling"
WAITING = "waiting for a state"
RESTORING = "restoring"
CORRECTED = "corrected"
"""The member prepared another state than most, and fetches that of most."""
READY = "ready"

UNSEEN = "not back since the shepherd started"


@dataclass(eq=False)
class Member:
    """A worker that was admitted by its `Hello`."""

    connection: Peer
    hello: Hello
    index: int
    seen: float
    state: str = COMPILING
    committed: int | None = None
    """The round of the shared state that it holds."""
    bundle: str | None = None
    """The digest of its program."""
    taking: dict[str, Any] = field(default_factory=dict)
    """The source of its state, as the ledger names it."""
    corrected_at: float = 0.0
    """When it was told to fetch the state that most members have prepared."""
    unserved: int = 0
    """How often other workers could not fetch its state."""
    lacked: int = 0
    """How often it failed to fetch a state."""
    pace: Pace = field(default_factory=Pace)
    """Its inner steps, as its progress guard sees them."""
    speed: float | None = None
    """Inner steps a second, a moving average."""
    bandwidth: float = 0.0
    """The most bytes a second that it sent in an exchange; 0: not known."""
    round_trip: float = field(init=False)
    """Seconds to the other members; before it was with any, to the shepherd."""
    name: str = field(init=False)
    """The worker's name."""

    def __post_init__(self) -> None:
        self.name, self.round_trip = self.hello.worker, self.hello.round_trip

    @property
    def address(self) -> str:
        """The address at which its peers reach it."""
        return self.hello.address

    @property
    def who(self) -> str:
        """The worker for a reader: its number, and where it is."""
        return f"worker {self.index} at {self.address}"

    def measured(self, steps: int, seconds: float) -> None:
        """Note that it made `steps` inner steps in `seconds`."""
        now = steps / max(seconds, 1e-6)
        self.speed = now if self.speed is None else (self.speed + now) / 2

    def exchanged(self, said: Prepared, members: int) -> None:
        """Note what an exchange among so many members says of its links."""
        if members > 1:
            self.round_trip = said.round_trip
            rate = said.bytes_sent / max(said.exchange_seconds, 1e-6)
            self.bandwidth = max(self.bandwidth, rate)

    def identify(self) -> dict[str, Any]:
        """Its constant facts while it is a member: name, address and device."""
        supervisor = self.hello.supervisor
        return {
            "worker": self.name,
            "index": self.index,
            "address": self.address,
            "target": self.hello.target,
            "backend": self.hello.backend,
            "device": self.hello.device,
            **({} if supervisor is None else {"supervisor": supervisor}),
        }

    def describe(self, now: float) -> dict[str, Any]:
        """Its entry in a status."""
        return {
            **self.identify(),
            "state": self.state,
            "round": self.committed,
            "steps_per_second": self.speed,
            "silent_seconds": round(now - self.seen, 1),
            "at": self.pace.at.model_dump() if self.pace.at else None,
        }


class Roster:
    """The members, by name and by connection; names keep their index for ever.

    `known` are the run's workers under an earlier shepherd, as its journal has them.
    """

    def __init__(self, known: Iterable[Mapping[str, Any]] = ()) -> None:
        self._members: dict[str, Member] = {}
        self._indices: dict[str, int] = {}
        self._absent: dict[int, dict[str, Any]] = {}
        """Workers that left, by index, the last one last; `left` is the reason."""
        self._slots: dict[str, tuple[str, str]] = {}
        """The host and the supervisor of each worker under an earlier shepherd."""
        for row in known:
            if slot := _slot(row):
                self._slots[row["worker"]] = slot
            self._indices[row["worker"]] = row["index"]
            self._absent[row["index"]] = {"left": UNSEEN, **row}
        self._by_connection: dict[Peer, Member] = {}
        self._sorted: tuple[Member, ...] = ()
        """The members in order of index."""

    def __iter__(self) -> Iterator[Member]:
        return iter(self._sorted)

    def _sort(self) -> None:
        members = sorted(self._members.values(), key=lambda m: m.index)
        self._sorted = tuple(members)

    def __len__(self) -> int:
        return len(self._members)

    def first_step(self, target: str) -> float | None:
        """The longest first inner step, in seconds, of the members of a target."""
        longest: float | None = None
        for member in self._sorted:
            took = member.pace.first_took
            if took is not None and member.hello.target == target:
                longest = took if longest is None else max(took, longest)
        return longest

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def add(self, connection: Peer, hello: Hello, now: float) -> Member:
        """Add a worker. Its index is the lowest that no present worker has."""
        used = {member.index for member in self}
        index = self._indices.get(hello.worker)
        if index is None or index in used:
            index = next(i for i in range(len(used) + 1) if i not in used)
        self._indices[hello.worker] = index
        self._absent.pop(index, None)
        member = Member(connection, hello, index, now)
        self._members[hello.worker] = member
        self._by_connection[connection] = member
        self._sort()
        return member

    def remove(self, member: Member, reason: str | None = None) -> None:
        """Remove a worker; with a reason it is absent until another takes its place."""
        if self._members.get(member.name) is member:
            del self._members[member.name]
            self._by_connection.pop(member.connection, None)
            self._sort()
            if reason is not None:
                self._absent[member.index] = {**member.identify(), "left": reason}

    def absent(self, wanted: int) -> list[dict[str, Any]]:
        """The workers that left last, as many as `wanted` is more than the members."""
        missing = max(wanted - len(self), 0)
        return list(self._absent.values())[max(len(self._absent) - missing, 0) :]

    def find(self, connection: Peer) -> Member | None:
        """The member of this connection; None: it has no member."""
        return self._by_connection.get(connection)

    def replaced(self, name: str) -> bool:
        """Whether a worker of an earlier shepherd is gone for good.

        Its supervisor has started another process, and runs one at a time.
        """
        slot = self._slots.get(name)
        new = (member for member in self if member.name not in self._slots)
        return slot is not None and any(_slot(m.identify()) == slot for m in new)

    def ready(self) -> list[Member]:
        """The members that can take part in a round."""
        return [member for member in self._sorted if member.state == READY]

    def holders(self, round_: int) -> list[Member]:
        """The ready members that hold the state of a round."""
        return [m for m in self._sorted if m.state == READY and m.committed == round_]

    def present(self, round_: int) -> list[Member]:
        """The holders that can bring others up to date in a group.

        The state of a member that is away can be fetched from it, and no more.
        """
        return [member for member in self.holders(round_) if not member.pace.away]


def distance_of(members: Sequence[Member]) -> Distance | None:
    """How far members are from each other, to whole milliseconds; None: near.

    The farthest and the slowest count, who are in each schedule's way.
    """
    trip = round(max(member.round_trip for member in members), 3)
    known = [member.bandwidth for member in members if member.bandwidth]
    return (
        Distance(trip, round(min(known, default=0.0))) if trip >= FAR_SECONDS else None
    )


def _slot(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """The host and the supervisor of a worker; None: nobody supervises it."""
    supervisor = row.get("supervisor")
    return (
        None if supervisor is None else (row["address"].rpartition(":")[0], supervisor)
    )
