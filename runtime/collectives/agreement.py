"""Agreement: the peers that a member tells of an operation and of its vote.

Among few members each tells all others. Among many that is N (N - 1) frames twice, so
they agree along a binomial tree of the members (the one of the schedule "tree"):

    OPEN     to the near members: those of the tree's edges, and the data's partners
    SUBTREE  up: all members at and below the sender have voted
    VERDICT  down: all have voted. Also the answer to ASK of who has committed it
    ASK      to all, with this member's vote: a member died, and with it what it would
             have passed on. From then on each tells all others, as few members do.

A member votes once, when it has its part. `Operation` decides what follows from the
votes. The tree connects all members, so descriptors that differ anywhere differ across
an edge of it, and are found there.

A member that leaves with a BYE has passed on all that it knew before: only its
neighbours in the tree have to ask, and only if they still wait for it. Its BYE has the
operations that it had called (`outcomes.Outcomes.called`), since a member may vote
before it knows of all others.

Pure: no clock, no links. The caller sends what is returned, (peer, step of a DONE
frame) each, to the members that are left.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import lru_cache

from pcp.errors import ProtocolError
from pcp.wire import FEW_MEMBERS

VOTE, SUBTREE, VERDICT, ASK = range(4)
"""Steps of a DONE frame; VOTE among few members."""
Said = list[tuple[int, int]]


@dataclass(frozen=True)
class Edges:
    """A member's place in the tree."""

    parent: int | None
    subtrees: dict[int, frozenset[int]]
    """The members at and below each child."""

    @staticmethod
    @lru_cache(4096)
    def of(rank: int, members: tuple[int, ...]) -> "Edges":
        """The place of a rank in the binomial tree of these members."""
        at, count = members.index(rank), len(members)
        lowest = at & -at or 1 << count.bit_length()
        steps = [1 << i for i in range(count.bit_length()) if 1 << i < lowest]
        subtrees = {
            members[at + step]: frozenset(members[at + step : at + 2 * step])
            for step in steps
            if at + step < count
        }
        return Edges(members[at & (at - 1)] if at else None, subtrees)


def many(peers: Collection[int]) -> bool:
    """Whether a member with so many peers agrees along a tree."""
    return len(peers) >= FEW_MEMBERS


class Agreement:
    """The votes of one operation as one member knows them.

    `partners` are the members that its data goes to or comes from; None for all.
    """

    __slots__ = (
        "_asked",
        "_direct",
        "_down",
        "_edges",
        "_up",
        "_voted",
        "gone",
        "near",
        "peers",
        "votes",
    )

    def __init__(
        self, rank: int, peers: Iterable[int], partners: Iterable[int] | None
    ) -> None:
        self.peers = frozenset(peers)
        self.near = self.peers
        """The members with which this one exchanges OPEN frames."""
        self.votes: set[int] = set()
        """The peers that are known to have voted."""
        self.gone: set[int] = set()
        self._edges: Edges | None = None
        if len(self.peers) >= FEW_MEMBERS:
            self._edges = edges = Edges.of(rank, tuple(sorted({rank, *self.peers})))
            if partners is not None:
                above = () if edges.parent is None else (edges.parent,)
                self.near = frozenset({*partners, *edges.subtrees, *above})
        self._voted = self._direct = False
        self._asked = self._up = self._down = False
        """Whether ASK, SUBTREE and VERDICT have been sent."""

    @property
    def settled(self) -> bool:
        """Whether all peers are known to have voted."""
        return self.votes >= self.peers

    @property
    def exhausted(self) -> bool:
        """Whether all peers have voted or are gone: no vote is to come."""
        return self.votes | self.gone >= self.peers

    def vote(self) -> Said:
        """This member has voted."""
        self._voted = True
        if self._edges is None:
            return [(peer, VOTE) for peer in self.peers]
        return self._next()

    def hear(self, peer: int, step: int) -> Said:
        """Handle a peer's DONE frame with this step; ProtocolError for a wrong one."""
        edges, asked = self._edges, False
        if edges is None and step == VOTE:
            self.votes.add(peer)
            return []
        match step:
            case _ if edges is None:
                believed = None
            case _ if step == ASK:
                believed, asked = {peer}, True
            case _ if step == SUBTREE:
                believed = edges.subtrees.get(peer)
            case _:
                above = self._voted and (peer == edges.parent or self._asked)
                believed = self.peers if step == VERDICT and above else None
        if believed is None:
            raise ProtocolError(f"rank {peer} says of votes what it cannot know")
        self._direct |= asked
        self.votes |= believed
        return self._next()

    def lose(self, peer: int, *, left: bool) -> Said:
        """A peer is gone; `left`: with a BYE."""
        self.gone.add(peer)
        self._direct |= not left or self._lacks(peer)
        return self._next()

    def _lacks(self, peer: int) -> bool:
        """Whether this member still waits for a frame of that neighbour."""
        if (edges := self._edges) is None or self.settled:
            return False
        below = edges.subtrees.get(peer, frozenset())
        return peer == edges.parent or not self.votes >= below

    def _next(self) -> Said:
        """The DONE frames that are due now, each once."""
        if not self._voted or self._edges is None:
            return []
        edges, said = self._edges, Said()
        if self._direct and not self._asked:
            self._asked = True
            said += [(peer, ASK) for peer in sorted(self.peers - self.gone)]
        if not self._up and all(self.votes >= s for s in edges.subtrees.values()):
            self._up = True
            said += [] if edges.parent is None else [(edges.parent, SUBTREE)]
        if not self._down and self.settled:
            self._down = True
            said += [(child, VERDICT) for child in edges.subtrees]
        return said
