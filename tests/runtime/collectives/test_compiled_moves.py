"""The compiled loop of a reduction: what it gives back, and what it lets through."""

import random
import socket
import threading
import time
from array import array

import numpy as np
import pytest
from helpers.worlds.collective_arguments import draw
from helpers.worlds.communicators import endpoints, form, leave, outcome, together
from helpers.worlds.communicators import world as world_of

from pcp.errors import PcpError, PeerLost, Timeout, UsageError
from pcp.runtime.collectives.reduction import bounds
from pcp.runtime.collectives.schedule import along_ring, reference
from pcp.runtime.collectives.segments.compiled_moves import CompiledLoop, first_writes
from pcp.runtime.memory.shared_arrays import shared_empty
from pcp.runtime.transport import mover
from pcp.runtime.transport.fault_injection import Fault, FaultPlan
from pcp.runtime.transport.frame import (
    Frame,
    Kind,
    data_prefix,
    pack_header,
    pack_trailer,
)

pytestmark = pytest.mark.skipif(mover.compiled is None, reason="no compiled loops")
SIZE = 300_001
READY, DAMAGED, FOREIGN, BROKEN, IDLE = 0, 4, 2, 3, 1


class Ring:
    """Rank 0 of two, with its compiled loop, and the socket of rank 1."""

    def __init__(self, count=40_000, *, in_place=False, world=2):
        self.count, self.half = count, count // 2
        plan = self.plan = along_ring(tuple(range(world)), 0)
        self.values = np.arange(count, dtype=np.float32)
        self.out = np.zeros(count, np.float32)
        chunks = bounds(count, world)
        stops = [chunks[move.chunks[1] - 1][1] for move in plan.moves]
        self.at = array("q", [chunks[move.chunks[0]][0] for move in plan.moves])
        self.here = array("q", self.at)
        saves = first_writes(plan, list(zip(self.at, stops, strict=True)))
        assert saves is not None
        table, before = array("q"), array("q")
        for move, stop in zip(plan.moves, stops, strict=True):
            row = [0, move.round, self.at[len(table) // 10], stop]
            row += [move.sends, move.reduce, move.ends, saves[len(table) // 10]]
            table.extend([*row, len(before), len(move.after)])
            before.extend(move.after)
        assert mover.compiled is not None
        self.moves = mover.compiled.Moves(1)
        content = b"what all members say"
        opening = pack_header(Frame(Kind.OPEN, payload=content), 5) + content
        self.opening, self.vote = opening, pack_header(Frame(Kind.DONE), 5)
        self.job = self.moves.add(
            (data_prefix(5, 0, 0, unchecked=False), self.vote, self.opening),
            (ord("f"), True, 0, count, in_place),
            self.values.view(np.uint8).data,
            self.out.view(np.uint8).data,
            self.at,
            self.here,
            table,
            before,
        )
        self.mine, self.theirs = socket.socketpair()

    def run(self, send=True):
        """One turn of the loop: why it came back, the peer, and elements that came."""
        number = self.mine.fileno()
        ends = ((number, number if send else -1),)
        why, which, _ = self.moves.run(ends, self.theirs.fileno(), 0, 0, 1 << 20)
        return why, which, self.moves.state(self.job)[1]

    def frame(self, start, payload, epoch=5, round_=None):
        """The bytes of a DATA frame of rank 1, of its first move if not told."""
        if round_ is None:
            round_ = next(m for m in self.plan.moves if not m.sends).round
        frame = Frame(Kind.DATA, 0, 0, round_, start, payload)
        total = mover.hasher(mover.compiled)
        total.update(payload)
        trailer = pack_trailer(total.intdigest())
        return pack_header(frame, epoch, flags=1) + bytes(payload) + trailer

    def close(self):
        """Close both ends."""
        self.mine.close()
        self.theirs.close()


@pytest.fixture
def ring():
    made = Ring()
    yield made
    made.close()


def incoming(ring):
    """The first move that receives, its first element, and what comes."""
    index = next(i for i, m in enumerate(ring.plan.moves) if not m.sends)
    return index, ring.at[index], np.full(ring.half, 2, np.float32).tobytes()


def test_a_damaged_frame_goes_nowhere(ring):
    index, start, payload = incoming(ring)
    raw = bytearray(ring.frame(start, payload))
    raw[1000] ^= 1
    ring.theirs.sendall(raw)
    assert ring.run() == (DAMAGED, 0, 0)
    assert ring.at[index] == start
    later = [i for i, m in enumerate(ring.plan.moves) if index in m.after]
    assert later
    assert all(ring.at[i] == start for i in later)  # the sum has not gone on


def test_a_frame_goes_on_when_it_is_whole(ring):
    index, start, payload = incoming(ring)
    raw = ring.frame(start, payload)
    ring.theirs.sendall(raw[:-1])
    assert ring.run(send=False)[0] == IDLE
    assert ring.at[index] == start
    ring.theirs.sendall(raw[-1:])
    assert ring.run(send=False)[2] == ring.half
    stop = start + ring.half
    assert ring.at[index] == stop
    assert np.array_equal(ring.out[start:stop], ring.values[start:stop] + 2)


@pytest.mark.parametrize("what", ["epoch", "place", "length", "kind", "crc"])
def test_the_header_of_anything_else_is_given_to_the_caller(ring, what):
    _, start, payload = incoming(ring)
    raw = bytearray(ring.frame(start, payload, epoch=5 + (what == "epoch")))
    if what == "place":
        raw = ring.frame(start + 1, payload[4:])
    elif what == "length":
        raw = ring.frame(start, payload + bytes(4))
    elif what == "kind":
        raw = pack_header(Frame(Kind.PING), 5)
    elif what == "crc":
        raw[51] ^= 1
    ring.theirs.sendall(raw)
    assert ring.run(send=False)[:2] == (FOREIGN, 0)
    assert ring.moves.head(0) == bytes(raw[:52])
    assert ring.moves.counts(0)[0] == 52


def test_the_end_of_the_connection_is_given_to_the_caller(ring):
    ring.theirs.shutdown(socket.SHUT_WR)
    assert ring.run(send=False)[:2] == (BROKEN, 0)


def last_move(ring):
    """The move that receives what rank 1 has finished."""
    return max(i for i, m in enumerate(ring.plan.moves) if not m.sends)


def carried_out(ring):
    """A whole operation; the first element that is summed here."""
    _, start, payload = incoming(ring)
    assert ring.run() == (IDLE, 0, 0)  # nothing goes to a peer that has not opened
    ring.theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        ring.theirs.recv(1)
    finished = last_move(ring)
    stop = ring.at[finished] + ring.half
    ring.theirs.sendall(ring.opening + ring.frame(start, payload))
    rest = np.full(ring.half, 3, np.float32).tobytes()
    round_ = ring.plan.moves[finished].round
    ring.theirs.sendall(ring.frame(stop - ring.half, rest, round_=round_))
    why, _, _ = ring.run()
    over, _, _, opened, _, voted, heard, _ = ring.moves.state(ring.job)
    assert (why, over, opened, voted > 0, heard) == (IDLE, 0, 1, True, 0)
    ring.theirs.sendall(ring.vote)
    assert ring.run()[0] == READY
    assert ring.moves.state(ring.job)[0] == 1
    sent = b""
    while not sent.endswith(ring.vote):
        sent += ring.theirs.recv(1 << 20)  # an error, if there is no more
    return start


def test_a_job_is_over_when_all_have_voted(ring):
    """The peer's OPEN frame lets data go, and the votes are the loop's."""
    carried_out(ring)


def test_an_open_frame_of_another_call_is_given_to_the_caller(ring):
    raw = ring.opening[:-1] + b"?"
    ring.theirs.sendall(raw + ring.vote[:20])
    assert ring.run()[:2] == (FOREIGN, 0)
    assert ring.moves.head(0) == raw + ring.vote[:20]


def test_a_vote_before_its_opening_is_given_to_the_caller(ring):
    ring.theirs.sendall(ring.vote)
    assert ring.run()[:2] == (FOREIGN, 0)
    assert ring.moves.head(0) == ring.vote


@pytest.mark.parametrize("cut", [0, 1, 60, 70_003, 80_055, 80_056, 80_120, 140_001])
def test_an_operand_that_was_overwritten_comes_back(cut):
    """Wherever in its frames a job is dropped; the sums so far are in the other."""
    ring = Ring(in_place=True)
    kept = ring.values.copy()
    index, start, payload = incoming(ring)
    finished = last_move(ring)
    rest = np.full(ring.half, 3, np.float32).tobytes()
    frames = ring.frame(start, payload) + ring.frame(
        ring.at[finished], rest, round_=ring.plan.moves[finished].round
    )
    ring.theirs.sendall(ring.opening + frames[:cut])
    ring.run()
    assert (cut <= 52) == np.array_equal(ring.values, kept)
    ring.moves.drop(ring.job)
    assert np.array_equal(ring.values, kept)
    done = slice(start, ring.at[index])
    assert np.array_equal(ring.out[done], kept[done] + 2)
    ring.close()


def test_a_result_before_its_sum_was_made_overwrites_nothing():
    """What was there would be lost: a peer that sends it too early is no fellow."""
    ring = Ring(in_place=True, world=3)
    kept = ring.values.copy()
    early = last_move(ring)
    assert not ring.plan.moves[early].reduce
    of = ring.plan.moves[early].chunks
    assert any(m.reduce and m.chunks == of for m in ring.plan.moves if not m.sends)
    rest = np.full(ring.count // 3, 3, np.float32).tobytes()
    frame = ring.frame(ring.at[early], rest, round_=ring.plan.moves[early].round)
    ring.theirs.sendall(ring.opening + frame)
    assert ring.run()[:2] == (FOREIGN, 0)
    assert np.array_equal(ring.values, kept)
    ring.close()


def test_a_result_in_place_stays_when_all_have_voted():
    ring = Ring(in_place=True)
    kept = ring.values.copy()
    start = carried_out(ring)
    ring.moves.drop(ring.job)
    half = slice(start, start + ring.half)
    other = slice(ring.half - start, ring.count - start)
    assert np.array_equal(ring.values[half], kept[half] + 2)
    assert np.all(ring.values[other] == 3)
    ring.close()


def test_moves_that_do_not_fit_their_memory_are_refused():
    assert mover.compiled is not None
    room = bytearray(4096)
    # One element more than there are.
    table = array("q", [0, 0, 0, 1025, 0, 1, 1, 0, 0, 0])
    with pytest.raises(ValueError, match="do not fit"):
        mover.compiled.Moves(1).add(
            (data_prefix(0, 0, 0, unchecked=False), b"", b""),
            (ord("f"), True, 0, 1, False),
            room,
            bytearray(4096),
            array("q", [0]),
            array("q", [0]),
            table,
            array("q"),
        )


@pytest.fixture
def world():
    with endpoints(3, shared_memory=False) as made:
        members = form(made)
        yield members
        leave(members)


def bits(members, arrays, *, in_place=False):
    """The bits of all results."""

    def call(m):
        if in_place:
            return m.all_reduce(arrays[m.rank].copy())
        return m.all_reduced(arrays[m.rank])

    return {one.tobytes() for one in together(members, call)}


def test_it_makes_the_moves(world, monkeypatch):
    made = []
    first = CompiledLoop.add

    def noted(self, *args, **options):
        made.append(self)
        first(self, *args, **options)

    monkeypatch.setattr(CompiledLoop, "add", noted)
    arrays = [draw(rank, SIZE) for rank in range(3)]
    assert bits(world, arrays) == {reference(arrays).tobytes()}
    assert len(made) == 3


@pytest.mark.parametrize("in_place", [False, True])
def test_links_that_take_their_sockets_back_go_on(world, in_place):
    """At any moment, within frames of both directions."""
    arrays = [draw(rank, 3 * SIZE) for rank in range(3)]
    wanted = {reference(arrays).tobytes()}
    over, chance, taken = threading.Event(), random.Random(7), []

    def disturb():
        while not over.is_set():
            group = chance.choice(world)._group
            link = group.links[chance.choice(sorted(group.links))]
            taken.append(
                group.loop.ask(lambda link=link: (link.borrower, link._reclaim())[0])
            )
            time.sleep(chance.random() / 500)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(20):
            assert bits(world, arrays, in_place=in_place) == wanted
    finally:
        over.set()
        thread.join()
    assert any(taken)


@pytest.mark.parametrize("size", [60_000, SIZE])
def test_a_member_without_it_takes_part(size):
    """Some of its frames are none that the others' loop knows."""
    with world_of("tcp", 3, {2: FaultPlan([])}) as members:
        arrays = [draw(rank, size) for rank in range(3)]
        wanted = {reference(arrays).tobytes()}
        for in_place in (True, False, True):
            assert bits(members, arrays, in_place=in_place) == wanted


def test_results_in_place_under_way_at_once_do_not_mix(world):
    """More of them than the loop takes, of which some end before the others."""
    arrays = [
        [draw(10 * n + rank, SIZE // (n + 1)) for rank in range(3)] for n in range(12)
    ]

    def calls(m):
        mine = [some[m.rank].copy() for some in arrays]
        order = sorted(range(12), key=lambda n: (n * (m.rank + 5)) % 13)
        started = {n: m.all_reduce_async(mine[n], tag=str(n)) for n in order}
        return [started[n].result(20).tobytes() for n in range(12)]

    wanted = [reference(some).tobytes() for some in arrays]
    for _ in range(3):
        for found in together(world, calls):
            assert found == wanted


def test_operations_that_were_given_up_leave_the_links_sound(world):
    arrays = [draw(rank, 3 * SIZE) for rank in range(3)]
    wanted = {reference(arrays).tobytes()}
    chance, ends = random.Random(3), []
    for _ in range(25):
        limit = 1e-3 + chance.random() / 100

        def call(m, limit=limit):
            kept = arrays[m.rank].copy()
            end = outcome(lambda: m.all_reduce(kept, timeout=limit))
            if isinstance(end, PcpError):
                assert np.array_equal(kept, arrays[m.rank])
            return end

        ends += together(world, call)
        if any(isinstance(error, PeerLost) for error in ends):
            break
        assert bits(world, arrays) == wanted
    assert any(isinstance(error, Timeout) for error in ends)
    assert not any(isinstance(error, PeerLost) for error in ends), ends


def test_operations_under_way_at_once_do_not_mix(world):
    arrays = [[draw(10 * n + rank, SIZE) for rank in range(3)] for n in range(4)]
    small = [np.full(4, rank) for rank in range(3)]

    def calls(m):
        started = [m.all_reduced_async(arrays[n][m.rank], tag=str(n)) for n in range(4)]
        assert m.all_reduced(small[m.rank])[0] == 3
        return [one.result(20).tobytes() for one in started]

    wanted = [reference(some).tobytes() for some in arrays]
    for found in together(world, calls):
        assert found == wanted


@pytest.mark.parametrize("kind", ["tcp", "processes"])
@pytest.mark.parametrize("count", [4, SIZE])
def test_the_result_is_made_in_the_array_that_is_given(kind, count):
    with endpoints(2, shared_memory=kind != "tcp") as made:
        members = form(made)
        arrays = [draw(rank, count) for rank in range(2)]
        outs = [shared_empty(count, "float32") for _ in range(2)]
        for _ in range(2):  # through memory the second time
            found = together(
                members, lambda m: m.all_reduced(arrays[m.rank], out=outs[m.rank])
            )
            assert all(a is b for a, b in zip(found, outs, strict=True))
            assert {out.tobytes() for out in outs} == {reference(arrays).tobytes()}
        leave(members)


def test_an_array_that_the_result_does_not_fit_is_refused(world):
    array = np.ones(8, np.float32)
    with pytest.raises(UsageError, match=r"float32\[7\].*float32\[8\]"):
        world[0].all_reduced(array, out=np.ones(7, np.float32))
    with pytest.raises(UsageError, match="shares memory"):
        world[0].all_reduced(array, out=array)


def test_a_decision_for_an_operation_brings_the_result_in_place():
    """Though the peer's vote never comes, and the loop still has the moves."""
    unsaid = FaultPlan([Fault("drop", kind=Kind.DONE)])
    with world_of("tcp", 2, {1: unsaid}) as members:
        group, arrays = members[0]._group, [draw(rank, SIZE) for rank in range(2)]
        wanted, driven = reference(arrays).tobytes(), []

        def decide(key):
            driven.append(group.loop.driver)
            group.loop.call(group.decided, key, True)

        group.arbiter = decide
        limits = [0.5, 20]
        ends = together(
            members,
            lambda m: m.all_reduce(arrays[m.rank], timeout=limits[m.rank]).tobytes(),
        )
        assert ends == [wanted] * 2
        assert unsaid.fired == 1
        assert len(driven) == 1
        assert driven[0] is not None
