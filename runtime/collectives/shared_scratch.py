"""Shared scratch: the segments in which members of one machine reduce.

Every member leases a segment of its own (`shared_segment`) to each large operation and
offers it in the OPEN frame; the others map it and read. The OPEN frame also has whether
the member has mapped a segment of every other member before, so that all members
decide alike whether an operation goes through memory:

    {"id": 3, "pid": ..., "fd": ..., "nonce": ...,   the offer of this segment
     "maps": true,              a segment of every member was mapped before
     "done": [[tag, seq], ...], operations whose segments are read no more;
                                sent again if the operation fails
     "live": [1, 3]}            segments that may be offered again; forget others

A segment is leased again when its operation has ended here and all peers are done with
it. That comes in their next OPEN frames, so that it needs no frame, and a member that
reduces without pause has two segments of a size. The segment of a failed operation is
never leased again: a peer may still read it. A member without a free segment leaves
the offer out; that operation goes over the connections.
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
    """A segment of this member, and the peers that may still read it."""

    segment: Segment
    readers: set[int]
    ended: bool = False


class SharingGroup(Protocol):
    """The group whose members may share memory."""

    at_close: list[Callable[[], None]]
    """Functions that the group calls when it closes."""

    @property
    def world_size(self) -> int:
        """How many members there are."""
        ...

    @property
    def links(self) -> dict[int, Link]:
        """The links to the present peers."""
        ...

    @property
    def shaped(self) -> bool:
        """Whether a fault plan slows a link to a peer."""
        ...


class SharedScratch:
    """The shared scratch of one member. After the first operation, loop thread only."""

    def __init__(self, group: SharingGroup, limit: int = LIMIT) -> None:
        self._group = group
        self._arena = Arena(SHARED, limit)
        self._leased: dict[Key, _Own] = {}
        self._mapped: dict[int, dict[int, Segment]] = {}
        self._done: list[Key] = []
        self._told: dict[Key, list[Key]] = {}
        """Operations reported as done, by the operation that reported them."""
        self._hopeless = False
        self.arrays = PeerMappings()
        """Mappings of the peers' shared arrays, for `zero_copy_reduce`."""
        group.at_close.append(self.close)

    @property
    def possible(self) -> bool:
        """Whether all members are on this machine, as far as is known."""
        links = self._group.links.copy()  # calling threads read it too
        return (
            not (self._hopeless or self._group.shaped)
            and len(links) == self._group.world_size - 1
            and all(isinstance(link, SharedLink) for link in links.values())
        )

    @property
    def reached(self) -> bool:
        """Whether a segment of every other member was mapped before."""
        return len(self._mapped) == self._group.world_size - 1

    def lease(self, key: Key, nbytes: int) -> tuple[Segment | None, dict[str, Any]]:
        """A segment for an operation, or None, and its offer."""
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
        """The segment of a peer's offer, mapped; None without a segment in reach.

        A segment out of reach may have ended with its operation, or its owner; if
        neither ends, the operation calls `refused`.
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
        """End leases that a peer reports done; its offered segment and live ones."""
        number, live, done = _parsed(said)
        for key in done:
            self._released(peer, key)
        return number, live

    def back(self, key: Key, *, used: bool) -> None:
        """End a lease after success; `used`: members read each other's segments."""
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
        """Give memory up: a member opened without it, or an offer is out of reach."""
        self._hopeless = True

    def drop(self, key: Key) -> None:
        """End a lease after a failure: peers may still read the segment."""
        self._done += self._told.pop(key, [])
        own = self._leased.pop(key, None)
        if own is not None:
            self._arena.lose(own.segment)

    def moved(self, sent: dict[int, int], received: dict[int, int]) -> None:
        """Count the bytes of an operation on its links."""
        for peer, link in self._group.links.items():
            if isinstance(link, SharedLink):
                link.count_moved(sent.get(peer, 0), received.get(peer, 0))

    def close(self) -> None:
        """Release all segments. One in use goes with its operation."""
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
        """Free the segment when its operation has ended and no peer reads it."""
        if own.ended and not own.readers:
            self._arena.give(self._leased.pop(key).segment)


def _parsed(said: Any) -> tuple[int | None, set[int], list[Key]]:
    """Number, live numbers and finished operations of a peer's offer."""
    try:
        live, keys = set(said["live"]), [(tag, seq) for tag, seq in said["done"]]
        number = said.get("id")
        numbers = (*live, *itertools.chain(*keys), 0 if number is None else number)
        if all(type(n) is int for n in numbers):
            return number, live, keys
    except (AttributeError, TypeError, KeyError, ValueError):
        pass
    raise ProtocolError("an OPEN frame with nonsense about memory")
