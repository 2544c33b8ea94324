"""Votes among few members and along a tree, under drawn orders of arrival."""

import random
from collections import defaultdict, deque

import numpy as np
import pytest
from helpers.simulation.along_trees import along_trees
from helpers.worlds.collective_arguments import LARGE
from helpers.worlds.communicators import outcome, together, world

from pcp.errors import CollectiveAborted, ProtocolError, Timeout
from pcp.runtime.collectives.agreement import (
    ASK,
    SUBTREE,
    VERDICT,
    VOTE,
    Agreement,
    Edges,
)
from pcp.runtime.collectives.schedule import reference, schedule
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.transport.fault_injection import Fault, FaultPlan
from pcp.runtime.transport.frame import Kind
from pcp.runtime.transport.in_process import InProcessLink

MANY = 40


class Votes:
    """Members that vote one after another; frames wait link by link in order."""

    def __init__(self, size: int) -> None:
        ranks = range(size)
        self.members = [
            Agreement(rank, [r for r in ranks if r != rank], ()) for rank in ranks
        ]
        self.queues: dict[tuple[int, int], deque[int]] = defaultdict(deque)
        self.frames = 0

    def say(self, rank: int, said: list[tuple[int, int]]) -> None:
        for peer, step in said:
            self.frames += 1
            self.queues[rank, peer].append(step)

    def run(self, draw: random.Random) -> None:
        waiting = list(range(len(self.members)))
        draw.shuffle(waiting)
        while waiting or any(self.queues.values()):
            ready = [link for link, queue in self.queues.items() if queue]
            if waiting and (not ready or draw.random() < 0.3):
                # Nobody may know of all votes before the last one is given.
                rank = waiting.pop()
                voted = {r for r in range(len(self.members)) if r not in waiting}
                assert not any(self.members[r].settled for r in voted - {rank})
                self.say(rank, self.members[rank].vote())
                continue
            src, dst = draw.choice(ready)
            step = self.queues[src, dst].popleft()
            self.say(dst, self.members[dst].hear(src, step))


@pytest.mark.parametrize("size", [1, 2, 3, 16, 17, 31, 32, 33, 100])
def test_all_know_of_all_votes_whatever_the_order(size) -> None:
    for seed in range(10):
        votes = Votes(size)
        votes.run(random.Random(seed))
        assert all(member.settled for member in votes.members)
        frames = size * (size - 1) if size <= 16 else 2 * (size - 1)
        assert votes.frames == frames


@pytest.mark.parametrize("size", [1, 2, 7, 17, 64, 100])
def test_the_tree_is_the_one_that_small_sums_go_along(size) -> None:
    places = [Edges.of(rank, tuple(range(size))) for rank in range(size)]
    edges = {(rank, e.parent) for rank, e in enumerate(places) if e.parent is not None}
    up = {(t.src, t.dst) for t in schedule("tree", size).transfers if t.reduce}
    assert edges == up
    for rank, place in enumerate(places):
        for child, below in place.subtrees.items():
            assert places[child].parent == rank
            assert below == {child}.union(*places[child].subtrees.values())


@pytest.mark.parametrize("dead", range(7))
def test_the_others_settle_it_when_one_is_gone(dead) -> None:
    """Whoever dies after its vote, however much it had passed on."""
    for seed in range(40):
        with along_trees():
            votes, draw = Votes(7), random.Random(seed)
            for rank, member in enumerate(votes.members):
                votes.say(rank, member.vote())
        for _ in range(draw.randrange(12)):
            ready = [link for link, queue in votes.queues.items() if queue]
            if ready:
                src, dst = draw.choice(ready)
                step = votes.queues[src, dst].popleft()
                votes.say(dst, votes.members[dst].hear(src, step))
        for (src, dst), queue in votes.queues.items():
            if dead in (src, dst):
                queue.clear()
        alive = [m for rank, m in enumerate(votes.members) if rank != dead]
        for rank, member in enumerate(votes.members):
            if rank != dead:
                votes.say(rank, member.lose(dead, left=False))
        while ready := [link for link, queue in votes.queues.items() if queue]:
            src, dst = draw.choice(ready)
            step = votes.queues[src, dst].popleft()
            if dst != dead:
                votes.say(dst, votes.members[dst].hear(src, step))
        assert all(member.exhausted for member in alive)


def test_a_goodbye_makes_only_those_ask_who_wait_for_its_word() -> None:
    with along_trees():
        votes = Votes(8)
    for member in votes.members:
        member.vote()
    asks = [bool(votes.members[r].lose(4, left=True)) for r in (0, 1, 2, 3, 5, 6, 7)]
    # 0 is above 4, 5 and 6 are below it.
    assert asks == [True, False, False, False, True, True, False]


@pytest.mark.parametrize(
    ("peer", "step"),
    [(1, VOTE), (3, SUBTREE), (1, SUBTREE), (2, VERDICT), (0, VERDICT), (1, 9)],
)
def test_what_a_peer_cannot_know_is_not_believed(peer, step) -> None:
    with along_trees():
        member = Agreement(2, [0, 1, 3, 4, 5, 6, 7], ())
        if step != VERDICT or peer != 0:  # before the own vote nobody has all votes
            member.vote()
        if step != SUBTREE or peer != 3:
            with pytest.raises(ProtocolError, match=f"rank {peer} says of votes"):
                member.hear(peer, step)
            return
        assert member.hear(3, SUBTREE) == [(0, SUBTREE)]


def test_among_few_a_vote_is_a_vote() -> None:
    member = Agreement(0, [1, 2], None)
    assert member.vote() == [(1, VOTE), (2, VOTE)]
    with pytest.raises(ProtocolError, match="cannot know"):
        member.hear(1, ASK)


@pytest.fixture(scope="module")
def many():
    """A world that is large enough for a tree."""
    members = Communicator.in_process(MANY)
    yield members
    for member in members:
        member.close(timeout=0)


@pytest.mark.parametrize("size", [3, 2000, LARGE])
def test_frames_of_a_sum_grow_with_the_logarithm(many, monkeypatch, size) -> None:
    sent, send = [], InProcessLink.send

    def counted(self, frame) -> None:
        sent.append(frame.kind)
        send(self, frame)

    arrays = [np.random.default_rng(r).normal(size=size) for r in range(MANY)]
    wanted = reference(arrays).tobytes()
    monkeypatch.setattr(InProcessLink, "send", counted)
    pending = [c.all_reduce_async(a) for c, a in zip(many, arrays, strict=True)]
    assert {p.result(30).tobytes() for p in pending} == {wanted}
    assert len(sent) <= 8 * MANY * np.log2(MANY)


def test_other_calls_among_many(many) -> None:
    def calls(c):
        c.barrier()
        small, large = np.full(3, float(c.rank)), np.full(LARGE, float(c.rank))
        for root, array in ((5, small), (33, large)):
            c.broadcast(array, root)
        moved = c.permute(
            np.full(2, c.rank), [(r, (r + 3) % MANY) for r in range(MANY)]
        )
        gathered = c.all_gather(np.array([c.rank]))
        total = c.reduce(np.full(LARGE, 1.0), root=7)
        return small[0], large[-1], moved[0], gathered.sum(), total[0]

    found = together(many, calls)
    everyone = sum(range(MANY))
    for rank, (small, large, moved, gathered, total) in enumerate(found):
        assert (small, large, moved) == (5, 33, (rank - 3) % MANY)
        assert gathered == everyone
        assert total == (MANY if rank == 7 else 1)


def test_disagreement_is_found_wherever_it_is(many) -> None:
    for odd in (0, 1, 24, MANY - 1):
        arrays = [np.ones(4 + (rank == odd)) for rank in range(MANY)]
        pending = [c.all_reduce_async(a) for c, a in zip(many, arrays, strict=True)]
        told = [outcome(lambda p=p: p.result(30)) for p in pending]
        assert all(isinstance(error, CollectiveAborted) for error in told)
        assert all(f"rank {odd} has shape [5]" in str(error) for error in told)
        assert all((array == 1).all() for array in arrays)


@pytest.mark.parametrize("call", ["all_reduce", "barrier"])
def test_who_never_comes_is_named_by_members_far_from_it(many, call) -> None:
    def wait(c):
        if c.rank in (13, 22):
            return None
        if call == "barrier":
            return outcome(lambda: c.barrier(tag="absent", timeout=2.0))
        return outcome(lambda: c.all_reduce(np.ones(3), tag="absent", timeout=2.0))

    told = [error for error in together(many, wait) if error is not None]
    assert len(told) == MANY - 2
    assert all(isinstance(error, Timeout | CollectiveAborted) for error in told)
    assert all("rank 13, 22 never joined it" in str(error) for error in told)


def test_lateness_among_many_is_what_the_near_members_saw(many) -> None:
    together(many, lambda c: c.barrier())
    found = together(many, lambda c: c.stragglers())
    assert all(f == found[0] for f in found)
    assert sorted(s.rank for s in found[0]) == list(range(MANY))
    assert all(np.isfinite(s.lateness) for s in found[0])


@pytest.mark.parametrize("carrier", ["tcp", "in_process"])
@pytest.mark.parametrize("size", [3, LARGE])
def test_a_verdict_that_died_with_its_bearer_is_asked_for(carrier, size) -> None:
    """Rank 0 has all votes, tells rank 1 of it and dies; 1 leaves the others to ask."""
    formed = int(carrier == "tcp")  # the barrier at the end of `form`
    plan = Fault("crash", kind=Kind.DONE, step=VERDICT, peer=2, skip=formed)
    told = FaultPlan([plan])
    arrays = [np.full(size, 1.0 + rank) for rank in range(5)]
    with along_trees(), world(carrier, 5, {0: told}) as members:
        pending = [c.all_reduce_async(a) for c, a in zip(members, arrays, strict=True)]
        found = [outcome(lambda p=p: p.result(20)) for p in pending]
        assert told.fired == 1
        for array in found[1:]:
            np.testing.assert_array_equal(array, np.full(size, 15.0))
