"""An island: ranks that are one member of a run, and their messages as one.

To the run's state machine an island is a peer, as a whole worker is. Messages of the
ranks become one message of the island once all ranks have sent theirs: a state's digest
is the hash of the digests of its parts, a round is prepared when every part is.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pcp.training.coordinator.events import Peer
from pcp.training.coordinator.island_formation import Rank
from pcp.training.storage import island_shapes
from pcp.training.storage.island_parts import Digests, joined_digest
from pcp.training.storage.ledger_state import Progress
from pcp.training.wire.message import (
    Message,
)
from pcp.training.wire.messages import (
    AwaitedRanks,
    Computed,
    Heartbeat,
    Hello,
    Lacking,
    Prepared,
    Ready,
    RoundStart,
    Validated,
)


class Island:
    """The ranks of a member by coordinate, as one `Peer`."""

    def __init__(
        self, name: str, ranks: Sequence[Rank], shape: int = 0, mesh: str | None = None
    ) -> None:
        """`mesh` is that of the `shape`, where islands of the run are not all alike."""
        self.name, self.ranks = name, list(ranks)
        self.shape, self.mesh = shape, mesh
        self.order: RoundStart | None = None
        """The newest `RoundStart`, as the run sent it."""
        self.settled = False
        """Whether the round of that message was committed."""
        self.inner_epoch: int | None = None
        """The epoch of the group of its ranks; None: the next order forms one."""
        self.restored: dict[int, Ready] | None = None
        """The rounds that ranks have restored since the last `Restore`."""
        self.parts: dict[tuple[int, int], Digests] = {}
        """The digests by coordinate of the state prepared last, by round and epoch."""
        self._said: dict[tuple[Any, ...], dict[int, Message]] = {}
        self._heard: dict[int, Heartbeat] = {}

    @property
    def here(self) -> str:
        """The address at which rank 0 reached this machine."""
        return self.ranks[0].connection.here

    @property
    def address(self) -> str:
        """The address of rank 0, which stands for the island."""
        return self.ranks[0].hello.address

    @property
    def target(self) -> str:
        """The target of its program: `cpu`, or `cpu tp=2` among unlike islands."""
        target = self.ranks[0].hello.target
        return target if self.mesh is None else f"{target} {self.mesh}"

    def joined(self, digests: Digests) -> str | None:
        """The digest of the island's state from those of its ranks."""
        if self.mesh is None:
            return joined_digest(digests)
        return island_shapes.joined(digests)

    def coordinate(self, rank: Rank) -> int:
        """The coordinate of a rank."""
        return self.ranks.index(rank)

    def placed(self) -> list[tuple[Rank, "Island"]]:
        """The ranks as they would be back, with the shape of this island."""
        shape = {"shape": self.shape}
        back = [replace(r, hello=r.hello.model_copy(update=shape)) for r in self.ranks]
        return [(rank, self) for rank in back]

    # State that the ranks hold
    # --------------------------------------------------------------

    def hello(self, progress: Progress) -> Hello:
        """The `Hello` of the island, by the hellos of its ranks and the run's progress.

        A commit may have reached only some ranks: the others have prepared that round,
        and adopt it when they are welcomed. Ranks with states of different rounds hold
        no state of the island.
        """
        first, hellos = self.ranks[0].hello, [rank.hello for rank in self.ranks]
        same = len({(h.run, h.bundle) for h in hellos}) == 1 and self._placed()
        committed, digest = self._held(hellos, progress)
        return first.model_copy(
            update={
                "worker": self.name,
                "target": self.target,
                "run": first.run if len({h.run for h in hellos}) == 1 else None,
                "bundle": first.bundle if same else None,
                "committed": committed,
                "digest": digest,
                "prepared": self._prepared(hellos),
                "round_trip": max(hello.round_trip for hello in hellos),
            }
        )

    def digests_of(self, round_: int) -> Digests:
        """The digests of the parts of a round, by the hellos of the ranks."""
        return [_digest_of(rank.hello, round_) for rank in self.ranks]

    def _held(
        self, hellos: Sequence[Hello], progress: Progress
    ) -> tuple[int | None, str | None]:
        if None in (rounds := {h.committed for h in hellos}) or not self._placed():
            return None, None
        if len(rounds) == 1:
            return rounds.pop(), self.joined([h.digest for h in hellos])
        newest = self.joined(self.digests_of(progress.committed))
        if newest is None or newest != progress.digest:
            return None, None
        return progress.committed, newest

    def _placed(self) -> bool:
        """Whether each rank has the coordinate that it had before."""
        return all(
            (rank.hello.coordinate, rank.hello.shape) == (at, self.shape)
            for at, rank in enumerate(self.ranks)
        )

    def _prepared(self, hellos: Sequence[Hello]) -> Prepared | None:
        said = [h.prepared for h in hellos]
        whole = [message for message in said if message is not None]
        if len(whole) < len(said) or not self._placed():
            return None
        if len({(message.round, message.epoch) for message in whole}) > 1:
            return None
        return self._note(whole)

    def _note(self, said: Sequence[Any]) -> Prepared:
        """All parts of a round are prepared: note the digest of each."""
        at = (said[0].round, said[0].epoch)
        self.parts = {k: v for k, v in self.parts.items() if k[0] >= at[0]}
        self.parts[at] = [message.digest for message in said]
        return joined_prepared(said, self.joined(self.parts[at]))

    # Messages of the ranks
    # ---------------------------------------------------------------

    def forget(self, *kinds: type[Message]) -> None:
        """Drop messages that only some of the ranks have sent."""
        self._said = {k: v for k, v in self._said.items() if k[0] not in kinds}

    def _restores(self, rank: Rank, message: Ready) -> Message | None:
        """The island's `Ready`; or `Lacking`, if ranks restored different rounds."""
        assert self.restored is not None
        self.restored[self.coordinate(rank)] = message
        if len(self.restored) < len(self.ranks):
            return None
        said, self.restored = self.restored, None
        rounds = {ready.round for ready in said.values()}
        if len(rounds) > 1:
            return Lacking(round=max(rounds))
        return self._ready([said[at] for at in range(len(self.ranks))])

    def torn_beyond(self, round_: int) -> bool:
        """Whether only some of the ranks say that they hold a later round than this."""
        return any(key[0] is Ready and key[1] > round_ for key in self._said)

    def _is_beyond(self, message: Ready) -> bool:
        """Whether a rank holds a round that the run has gone back from, and orders."""
        return self.order is not None and message.round >= self.order.round

    def _beats(self, rank: Rank, message: Heartbeat) -> Heartbeat | None:
        """A heartbeat of the island whenever all its ranks have sent one.

        The island is where the rank is that is least far with the island's order, for
        which the others wait, and so is its report of inner exchanges. It awaits the
        ranks that one of its own awaits longest, and is alone as long as one is.
        """
        self._heard[self.coordinate(rank)] = message
        if len(self._heard) < len(self.ranks):
            return None
        heard, self._heard = self._heard, {}
        beats = self._under_way(heard)
        least = min(beats, key=_far)
        steps = [beat.at.steps for beat in heard.values() if beat.at is not None]
        at = least.at
        if at is not None and len(steps) == len(heard):
            at = at.model_copy(update={"steps": min(steps)})
        if least.meeting is None:
            return Heartbeat(at=at)
        known = [beat.meeting for beat in beats if beat.meeting is not None]
        said = [report.awaits for report in known if report.awaits is not None]
        alone = [report.alone for report in known if report.alone is not None]
        awaits = max(said, key=_waited, default=None)
        update = {"awaits": awaits, "alone": max(alone, default=None)}
        return Heartbeat(meeting=least.meeting.model_copy(update=update), at=at)

    def _under_way(self, heard: Mapping[int, Heartbeat]) -> list[Heartbeat]:
        """The heartbeats of ranks that have not prepared the round; else of all."""
        order, done = self.order, dict[int, Message]()
        if order is not None:
            done = self._said.get((Prepared, order.round, order.epoch), done)
        late = [beat for at, beat in heard.items() if at not in done]
        return late or list(heard.values())

    def says(self, rank: Rank, message: Message) -> Message | None:
        """The island's message; None while another rank has yet to send its own."""
        if isinstance(message, Heartbeat):
            return self._beats(rank, message)
        if isinstance(message, Ready) and self.restored is not None:
            return self._restores(rank, message)
        if isinstance(message, Ready) and self._is_beyond(message):
            return Lacking(round=message.round)
        if type(message) not in _JOINED:
            return message
        key, join = (type(message), *_subject(message)), _JOINED[type(message)]
        said = self._said.setdefault(key, {})
        said[self.coordinate(rank)] = message
        if len(said) < len(self.ranks):
            return None
        del self._said[key]
        whole: list[Any] = [said[at] for at in range(len(self.ranks))]
        return join(self, whole)

    def _ready(self, said: Sequence[Any]) -> Ready:
        digest = self.joined([m.digest for m in said])
        return said[0].model_copy(update={"digest": digest})


class RankTable:
    """The ranks that are connected, by connection, with their islands."""

    def __init__(self) -> None:
        self._ranks: dict[Peer, tuple[Rank, Island | None]] = {}
        self._waiting: dict[Peer, Rank] = {}
        self._workers: dict[str, Peer] = {}

    def __contains__(self, peer: object) -> bool:
        return peer in self._ranks

    def __getitem__(self, peer: Peer) -> tuple[Rank, Island | None]:
        return self._ranks[peer]

    def waiting(self) -> list[Rank]:
        """The ranks that are in no island, in the order of their hellos."""
        return list(self._waiting.values())

    def of_worker(self, name: str) -> Peer | None:
        """The connection of the rank with this name."""
        return self._workers.get(name)

    def add(self, rank: Rank) -> None:
        """A rank is there, in no island."""
        peer = rank.connection
        self.pop(peer)
        self._ranks[peer], self._waiting[peer] = (rank, None), rank
        self._workers[rank.hello.worker] = peer

    def place(self, rank: Rank, island: Island) -> None:
        """A rank that waited is in an island."""
        self._ranks[rank.connection] = (rank, island)
        del self._waiting[rank.connection]

    def pop(self, peer: Peer) -> bool:
        """Remove a rank; whether it was there."""
        if peer not in self._ranks:
            return False
        rank, _ = self._ranks.pop(peer)
        self._waiting.pop(peer, None)
        del self._workers[rank.hello.worker]
        return True


Peers = tuple[list[str], list[int]]
"""The ranks that an order names, and the shapes of their islands."""


class AddressTable:
    """The addresses of islands, and those of their ranks."""

    def __init__(self, islands: Mapping[str, Island], sizes: Sequence[int]) -> None:
        """`sizes` are the ranks of an island by shape."""
        self._islands, self._sizes = islands, sizes
        self._named: tuple[Sequence[str], dict[int, Peers]] = ([], {})
        """The members that an attempt's orders share, with their ranks so far."""

    def of_island(self, address: str) -> bool:
        """Whether an island is known by this address."""
        return address in {island.address for island in self._islands.values()}

    def shapes(self, addresses: Iterable[str]) -> list[int]:
        """The shape of each island; empty where all are alike."""
        if len(self._sizes) == 1:
            return []
        known = {island.address: island.shape for island in self._islands.values()}
        return [known.get(address, 0) for address in addresses]

    def ranks(self, addresses: Sequence[str]) -> list[str]:
        """The ranks of islands, each of which is named by its address."""
        shapes = self.shapes(addresses) or [0] * len(addresses)
        return [
            self.at(address, at)
            for address, shape in zip(addresses, shapes, strict=True)
            for at in range(self._sizes[shape])
        ]

    def peers(self, members: Sequence[str], coordinate: int) -> Peers:
        """The ranks that an order for a coordinate names, and the islands' shapes.

        All orders of an attempt have one list of members, of which each is looked up
        once for each coordinate, and not once for each rank.
        """
        if self._named[0] is not members:
            self._named = members, {}
        known, unlike = self._named[1], len(self._sizes) > 1
        key = 0 if unlike else coordinate
        if key not in known:
            shapes = self.shapes(members)
            ranks = self.ranks if unlike else partial(self._column, coordinate)
            known[key] = ranks(members), shapes
        return known[key]

    def _column(self, coordinate: int, members: Sequence[str]) -> list[str]:
        known = {island.address: island for island in self._islands.values()}
        return [
            known[address].ranks[coordinate].hello.address
            if address in known
            else address
            for address in members
        ]

    def member(self, address: str) -> str:
        """For a rank's address that of its island; any other address unchanged."""
        for island in self._islands.values():
            if address in (rank.hello.address for rank in island.ranks):
                return island.address
        return address

    def at(self, address: str, coordinate: int) -> str:
        """For a member's address that of its rank; any other address unchanged."""
        for island in self._islands.values():
            if island.address == address:
                return island.ranks[coordinate].hello.address
        return address


def _far(beat: Heartbeat) -> tuple[float, ...]:
    """A rank's progress, to compare: by its order, as its steps are its process's.

    One that has not begun with an order comes first; one that waits is further than one
    that acts. Of equals the one counts that has not moved for longest, each time.
    """
    order, at = beat.meeting, beat.at
    begun = (-1,) * 3 if order is None else (order.round, order.epoch, order.entered)
    if at is None:
        return begun
    return *begun, at.call == "waiting", at.with_others, at.steps, -at.since


def _waited(awaits: AwaitedRanks) -> float:
    return awaits.seconds if awaits.ranks else -1.0


def _digest_of(hello: Hello, round_: int) -> str | None:
    """The digest of a rank's part of a round that it holds, or has prepared."""
    if hello.committed == round_:
        return hello.digest
    done = hello.prepared
    return done.digest if done is not None and done.round == round_ else None


def _subject(message: Any) -> tuple[int, ...]:
    """The subject of a message; messages of ranks with the same subject become one."""
    return tuple(getattr(message, key, -1) for key in ("round", "epoch"))


def joined_prepared(said: Sequence[Any], digest: str | None) -> Prepared:
    """Losses and steps are the same on all ranks; times are the longest, bytes sums."""
    most = (
        "compute_seconds",
        "exchange_seconds",
        "data_wait_seconds",
        "round_trip",
    )
    alls = ("bytes_sent", "bytes_received", "processor_seconds")
    update: dict[str, Any] = {"digest": digest}
    update |= {key: max(getattr(m, key) for m in said) for key in most}
    update |= {key: sum(getattr(m, key) for m in said) for key in alls}
    update["resident_bytes"] = max(m.resident_bytes for m in said)
    update |= _values(said)
    update["gradient_norm"] = _of_all([m.gradient_norm for m in said])
    update["spoiled"] = [name for m in said for name in m.spoiled][:3]
    update["disputes"] = any(m.disputes for m in said)
    return said[0].model_copy(update=update)


def _computed(island: Island, said: Sequence[Any]) -> Computed:
    return said[0].model_copy(update=_values(said))


def _values(said: Sequence[Any]) -> dict[str, Any]:
    """The first loss that is not finite, else the loss; and the norm over all parts."""
    bad = [m for m in said if m.loss is not None and not math.isfinite(m.loss)]
    steps = [m.nonfinite_step for m in said if m.nonfinite_step is not None]
    return {
        "loss": bad[0].loss if bad else said[0].loss,
        "nonfinite_step": min(steps, default=None),
        "moved": _of_all([m.moved for m in said]),
    }


def _of_all(shares: Sequence[float | None]) -> float | None:
    """A norm, from each rank's share; None if a share is not known."""
    known = [share for share in shares if share is not None]
    return math.hypot(*known) if len(known) == len(shares) else None


def _first(island: Island, said: Sequence[Any]) -> Message:
    return said[0]


_JOINED: Mapping[type[Message], Any] = {
    Computed: _computed,
    Prepared: Island._note,
    Ready: Island._ready,
    Validated: _first,
}
