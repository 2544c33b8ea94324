"""The segments that the members of a group on one machine reduce in.

Every member lends each large operation a segment of its own (`segments`) and says
so when it opens the operation; the others map it and read. So that all members
decide alike whether an operation goes through memory, each also says whether it
has ever reached the memory of everybody, and they go by what everybody said:

    {"id": 3, "pid": ..., "fd": ..., "nonce": ...,   where this one is
     "maps": true,              I have reached a segment of every member
     "done": [[tag, seq], ...], operations whose segments I read no more;
                                said again if the operation fails
     "live": [1, 3]}            what I may offer again; forget the others

A segment is lent again when its operation has ended here and everybody is done
with it. That comes with their next openings, so that no frame is sent for it, and
a member that reduces without pause has two segments of a size. The segment of an
operation that failed is never lent again: a peer may still read it. A member that
has none to lend leaves out where it is; that operation goes over the connections.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pcp.errors import ProtocolError
from pcp.runtime.memory.arena import LIMIT, Arena
from pcp.runtime.memory.shared_arrays import PeerMappings
from pcp.runtime.memory.shared_segment import SHARED, Segment
from pcp.runtime.transport.link import Link
from pcp.runtime.transport.shared_memory import SharedLink

Key = tuple[int, int]


@dataclass
class _Own:
    """A segment of this member's, and who may still read it."""

    segment: Segment
    readers: set[int]
    ended: bool = False


class Neighbours(Protocol):
    """The group whose members may share memory."""

    at_close: list[Callable[[], None]]
    """What ends with the group."""

    @property
    def world_size(self) -> int:
        """How many members there are."""
        ...

    @property
    def links(self) -> dict[int, Link]:
        """The connections to the peers that are there."""
        ...

    @property
    def shaped(self) -> bool:
        """Whether a way to a peer is slowed on purpose."""
        ...


class SharedScratch:
    """One member's view. After the first operation all in the loop's thread."""

    def __init__(self, group: Neighbours, limit: int = LIMIT) -> None:
        self._group = group
        self._arena = Arena(SHARED, limit)
        self._leased: dict[Key, _Own] = {}
        self._mapped: dict[int, dict[int, Segment]] = {}
        self._done: list[Key] = []
        self._told: dict[Key, list[Key]] = {}
        """What was done, by the operation whose opening says so."""
        self._hopeless = False
        self.arrays = PeerMappings()
        """The others' arrays in memory that can be mapped, of operations that are
        straight from and to these (`zero_copy_reduce`)."""
        group.at_close.append(self.close)

    @property
    def possible(self) -> bool:
        """Whether all members are here, as far as is known."""
        links = self._group.links.copy()  # threads that call ask too
        return (
            not (self._hopeless or self._group.shaped)
            and len(links) == self._group.world_size - 1
            and all(isinstance(link, SharedLink) for link in links.values())
        )

    @property
    def reached(self) -> bool:
        """Whether memory of every other member was mapped before."""
        return len(self._mapped) == self._group.world_size - 1

    def lease(self, key: Key, nbytes: int) -> tuple[Segment | None, dict[str, Any]]:
        """A segment for an operation, if there is one, and what to say about it."""
        segment = self._arena.lease(nbytes)
        done, self._done = self._done, []
        self._told[key] = done
        facts: dict[str, Any] = {"maps": False, "done": done}
        if segment is not None:
            self._leased[key] = _Own(segment, set(self._group.links))
            facts |= {"id": segment.number, **segment.offer, "maps": self.reached}
        leased = [own.segment for own in self._leased.values()]
        facts["live"] = [own.number for own in (*leased, *self._arena.free)]
        return segment, facts

    def meet(self, peer: int, said: Any, nbytes: int) -> Segment | None:
        """What a peer said: its segment, or None where there is none for us.

        One that is out of reach may have gone with its operation, or its owner; if
        neither ends, the operation calls it `refused`.
        """
        number, live = self.heed(peer, said)
        known = {n: s for n, s in self._mapped.get(peer, {}).items() if n in live}
        if number is None:
            return None
        segment = known.get(number)
        if segment is None or segment.nonce.hex() != said.get("nonce"):
            segment = Segment.map(said, nbytes, SHARED.largest(nbytes))
        if segment is None or segment.nbytes < nbytes:
            return None
        self._mapped[peer] = known | {number: segment}
        return segment

    def heed(self, peer: int, said: Any) -> tuple[int | None, set[int]]:
        """What a peer reads no more; which segment it offers, and may offer again."""
        number, live, done = _parsed(said)
        for key in done:
            self._released(peer, key)
        return number, live

    def back(self, key: Key, *, used: bool) -> None:
        """An operation succeeded; `used`: its members read each other's segments."""
        self._told.pop(key, None)
        own = self._leased.get(key)
        if own is None:
            return
        own.ended = True
        if used:
            self._done.append(key)
        else:
            own.readers.clear()
        self._settle(key, own)

    def refused(self) -> None:
        """A member opened without memory, or what one offered cannot be reached."""
        self._hopeless = True

    def drop(self, key: Key) -> None:
        """An operation failed: who knows who reads its segment, or its opening."""
        self._done += self._told.pop(key, [])
        own = self._leased.pop(key, None)
        if own is not None:
            self._arena.lose(own.segment)

    def moved(self, sent: dict[int, int], received: dict[int, int]) -> None:
        """Count the bytes of an operation for its connections."""
        for peer, link in self._group.links.items():
            if isinstance(link, SharedLink):
                link.count_moved(sent.get(peer, 0), received.get(peer, 0))

    def close(self) -> None:
        """Keep nothing. What an operation still uses goes with the operation."""
        self._hopeless = True
        self._arena.close()
        self._leased.clear()
        self._told.clear()
        self._mapped.clear()
        self.arrays.close()

    def _released(self, peer: int, key: Key) -> None:
        own = self._leased.get(key)
        if own is not None:
            own.readers.discard(peer)
            self._settle(key, own)

    def _settle(self, key: Key, own: _Own) -> None:
        """The segment may be lent again when the operation ended and none reads it."""
        if own.ended and not own.readers:
            self._arena.give(self._leased.pop(key).segment)


def _parsed(said: Any) -> tuple[int | None, set[int], list[Key]]:
    """Number, live numbers and finished operations in a peer's opening."""
    try:
        live, keys = set(said["live"]), [(tag, seq) for tag, seq in said["done"]]
        number = said.get("id")
        numbers = (*live, *itertools.chain(*keys), 0 if number is None else number)
        if all(type(n) is int for n in numbers):
            return number, live, keys
    except (AttributeError, TypeError, KeyError, ValueError):
        pass
    raise ProtocolError("an OPEN frame with nonsense about memory")
