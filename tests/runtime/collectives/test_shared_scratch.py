"""Which segment is leased when, who may read it still, and what peers may say."""

import os
from collections.abc import Callable

import pytest
from helpers.simulation.silent_link import SilentLink

from pcp.errors import ProtocolError
from pcp.runtime.collectives.shared_scratch import SharedScratch
from pcp.runtime.memory.shared_segment import SHARED, Segment
from pcp.runtime.transport.link import Link
from pcp.runtime.transport.shared_memory import SharedLink

SIZE = 400_000
MOST = SHARED.most or 0


class Near(SharedLink):
    """A link to this machine that carries nothing."""

    def __init__(self) -> None:
        self._moved = [0, 0]


class Group:
    """`SharingGroup` of one member, all on this machine."""

    shaped = False

    def __init__(self, world_size: int = 3, rank: int = 0) -> None:
        self.world_size = world_size
        peers = [peer for peer in range(world_size) if peer != rank]
        self.links: dict[int, Link] = {peer: Near() for peer in peers}
        self.at_close: list[Callable[[], None]] = []


def said(scratch: SharedScratch, key: tuple[int, int], nbytes: int = SIZE) -> dict:
    segment, facts = scratch.lease(key, nbytes)
    assert segment is not None
    return facts


def test_it_is_possible_while_all_are_near_and_nobody_refused() -> None:
    near, far = SharedScratch(Group()), Group()
    assert near.possible
    near.refused()
    assert not near.possible
    scratch = SharedScratch(far)
    far.links[2] = SilentLink()
    assert not scratch.possible
    del far.links[2]
    assert not scratch.possible, "somebody is missing"
    slowed = Group()
    slowed.shaped = True
    assert not SharedScratch(slowed).possible


def test_members_that_mapped_everybody_say_so() -> None:
    ours, theirs = SharedScratch(Group(2)), SharedScratch(Group(2, 1))
    first = said(theirs, (0, 0))
    assert first["maps"] is False
    segment = ours.meet(1, first, SIZE)
    assert segment is not None
    assert segment.nbytes >= SIZE
    assert said(ours, (0, 0))["maps"] is True
    assert ours.meet(1, first, SIZE) is segment, "once is enough"


def test_a_segment_is_leased_again_when_all_are_done_with_it() -> None:
    scratch = SharedScratch(Group())
    first = said(scratch, (0, 0))
    scratch.meet(1, empty() | {"done": [(0, 0)]}, SIZE)
    scratch.back((0, 0), used=True)
    assert said(scratch, (0, 1))["id"] != first["id"], "rank 2 still reads it"
    scratch.meet(2, empty() | {"done": [(0, 0), (5, 5)]}, SIZE)
    again = said(scratch, (0, 2))
    assert (again["id"], again["nonce"]) == (first["id"], first["nonce"])
    assert again["done"] == []
    scratch.back((0, 2), used=False)
    assert said(scratch, (0, 3))["id"] == first["id"], "nobody read it"


def test_others_hear_once_what_is_read_no_more() -> None:
    scratch = SharedScratch(Group(2))
    for turn in range(4):
        keys = [(7, MOST * turn + i) for i in range(MOST - 1)]
        for key in keys:
            assert scratch.lease(key, 1)[0] is not None
        for key in keys:
            scratch.back(key, used=True)
        scratch.meet(1, empty() | {"done": keys}, 1)
        assert len(scratch._arena.free) == MOST - 1
    told = [said(scratch, (8, seq), 1)["done"] for seq in range(3)]
    assert [len(keys) for keys in told] == [MOST - 1, 0, 0]
    assert told[0][0] == (7, 3 * MOST)


def test_there_are_not_too_many() -> None:
    scratch = SharedScratch(Group())
    assert all(scratch.lease((0, seq), 1)[0] for seq in range(MOST))
    segment, facts = scratch.lease((0, MOST), 1)
    assert segment is None
    assert "id" not in facts
    assert SharedScratch(Group()).meet(1, facts, 1) is None
    for seq in range(MOST):
        scratch.back((0, seq), used=False)
    assert scratch.lease((1, 0), 1 << 22)[0] is not None
    assert len(scratch._arena.free) == MOST - 1
    scratch.close()


def test_the_segment_of_a_failed_operation_is_never_leased_again() -> None:
    scratch = SharedScratch(Group())
    first = said(scratch, (0, 0))
    scratch.drop((0, 0))
    assert Segment.map(first, 1, 1 << 30) is None, "it is offered no more"
    second = said(scratch, (0, 1))
    assert second["id"] not in (first["id"],)
    assert second["live"] == [second["id"]]


def test_what_is_kept_is_bounded_and_fits() -> None:
    scratch = SharedScratch(Group(), limit=3 << 20)
    for seq in range(4):
        said(scratch, (0, seq), 1 << 20)
    for seq in range(4):
        scratch.back((0, seq), used=False)
    assert sum(segment.nbytes for segment in scratch._arena.free) == 3 << 20
    kept = [segment.number for segment in scratch._arena.free]
    assert said(scratch, (0, 9), 100)["id"] not in kept, "they are much too large"
    scratch.close()
    assert not scratch._arena.free
    assert not scratch.possible


def test_an_operation_in_doubt_keeps_its_memory_beyond_the_group() -> None:
    """The coordinator may still decide that it happened."""
    scratch = SharedScratch(Group())
    segment, facts = scratch.lease((0, 0), SIZE)
    assert segment is not None
    segment.octets[:3] = 7
    scratch.close()
    assert segment.octets[:3].tolist() == [7, 7, 7]
    scratch.back((0, 0), used=True)
    assert not scratch._leased
    del segment
    assert Segment.map(facts, 1, 1 << 30) is None, "then it is gone"


def test_memory_that_is_gone_with_its_operation_ends_nothing() -> None:
    scratch = SharedScratch(Group(2))
    theirs = SharedScratch(Group(2, 1))
    offer = said(theirs, (0, 0))
    theirs.drop((0, 0))
    assert scratch.meet(1, offer, SIZE) is None
    assert scratch.possible


def test_the_offer_of_a_failed_operation_is_repeated() -> None:
    """Whether anybody read it is not known."""
    scratch = SharedScratch(Group(2))
    said(scratch, (0, 0))
    scratch.back((0, 0), used=True)
    assert said(scratch, (0, 1))["done"] == [(0, 0)]
    scratch.drop((0, 1))
    assert said(scratch, (0, 2))["done"] == [(0, 0)]
    scratch.back((0, 2), used=True)
    assert said(scratch, (0, 3))["done"] == [(0, 2)]


def test_memory_that_cannot_be_had(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no such call")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert SharedScratch(Group(2)).lease((0, 0), SIZE)[0] is None


def empty() -> dict:
    return {"id": 0, "live": [], "done": [], "pid": 0, "fd": 0, "nonce": ""}


@pytest.mark.parametrize(
    "nonsense",
    [
        None,
        5,
        [],
        {},
        empty() | {"id": "1"},
        empty() | {"id": True},
        empty() | {"live": 3},
        empty() | {"live": [[1]]},
        empty() | {"live": ["a"]},
        empty() | {"done": [1]},
        empty() | {"done": [[1, 2, 3]]},
        empty() | {"done": [[1, None]]},
        empty() | {"done": "ab"},
    ],
)
def test_nonsense_is_a_protocol_error(nonsense) -> None:
    with pytest.raises(ProtocolError, match="memory"):
        SharedScratch(Group()).meet(1, nonsense, SIZE)
