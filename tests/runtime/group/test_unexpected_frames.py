"""Frames that come before our own call: bounds, and far members who run ahead."""

import time
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from helpers.worlds.communicators import eventually, outcome, together, world

from pcp.errors import CollectiveAborted, PeerLost, ProtocolError, Timeout
from pcp.runtime.collectives.schedule import reference
from pcp.runtime.group import group as groups
from pcp.runtime.group import unexpected_frames
from pcp.runtime.transport.fault_injection import FaultPlan, Shape
from pcp.runtime.transport.frame import Frame, Header, Kind
from pcp.runtime.transport.tcp import TcpLink

LARGE = 300_001
"""Elements of float32: a ring of several frames a chunk."""


def held(kind: Kind, seq: int, length: int) -> Header:
    return Header(kind, 0, 0, seq, 0, 0, length, 0)


def draw(rank: int, count: int = LARGE) -> np.ndarray:
    return np.random.default_rng(rank).standard_normal(count).astype(np.float32)


@contextmanager
def distant(size: int):
    """A world whose members take each other for far away."""
    with patch.object(TcpLink, "round_trip", 0.1), world("tcp", size) as comms:
        yield comms


def unexpected(comm) -> int:
    """Bytes of data that this member keeps for calls it has not made."""
    group = comm._group
    return group.loop.ask(lambda: sum(group._table.unexpected._data.values()))


def unexpected_soon(comm) -> int:
    """The same, when there is some; 0 if there is none in a while."""
    until = time.monotonic() + 0.3
    while not (found := unexpected(comm)) and time.monotonic() < until:
        time.sleep(0.005)
    return found


def ahead(comm) -> int:
    """Bytes that others may keep for this one."""
    group = comm._group
    return group.loop.ask(lambda: sum(group._ahead.values()))


def settled(comms) -> None:
    eventually(lambda: not any(map(unexpected, comms)) and not any(map(ahead, comms)))


# What is kept.


def test_a_peer_far_ahead_is_bounded_and_takes_nothing_from_others() -> None:
    room, size = unexpected_frames.UnexpectedFrames(), 32 << 10
    payload = memoryview(bytes(size))
    most = unexpected_frames.MAX_BYTES // size
    for seq in range(most):
        room.keep((0, seq), 1, held(Kind.OPEN, seq, size), payload)
    with pytest.raises(ProtocolError, match="rank 1 is too far ahead"):
        room.keep((0, most), 1, held(Kind.OPEN, most, size), payload)
    room.keep((0, most), 2, held(Kind.OPEN, most, size), payload)
    with pytest.raises(ProtocolError, match="repeats"):
        room.keep((0, most), 2, held(Kind.OPEN, most, size), payload)
    with pytest.raises(ProtocolError, match="DONE"):
        room.keep((0, most), 2, held(Kind.DONE, most, 0), payload)
    assert [rank for rank, _, _ in room.take((0, 0))] == [1]
    room.keep((0, most), 1, held(Kind.OPEN, most, size), payload)


def test_data_is_kept_behind_an_open_frame_up_to_a_bound_of_each_peer() -> None:
    room, size = unexpected_frames.UnexpectedFrames(), 1 << 20
    data, most = held(Kind.DATA, 0, size), unexpected_frames.AHEAD_BYTES >> 20
    with pytest.raises(ProtocolError, match="nobody asked for"):
        room.room((0, 0), 1, size)
    for rank in (1, 2):
        room.keep((0, 0), rank, held(Kind.OPEN, 0, 9), memoryview(bytes(9)))
        for _ in range(most):
            room.keep((0, 0), rank, data, room.room((0, 0), rank, size))
        with pytest.raises(ProtocolError, match="too far ahead"):
            room.room((0, 0), rank, 1)
        with pytest.raises(ProtocolError, match="too far ahead"):
            room.keep((0, 0), rank, data, memoryview(bytes(size)))
    room.keep((0, 0), 1, held(Kind.ABORT, 0, 0), memoryview(b""))
    with pytest.raises(ProtocolError, match="nobody asked for"):
        room.room((0, 0), 1, size)
    kinds = [(rank, header.kind) for rank, header, _ in room.take((0, 0))]
    ones, others = [k for r, k in kinds if r == 1], [k for r, k in kinds if r == 2]
    assert ones == [Kind.OPEN, Kind.ABORT]
    assert others == [Kind.OPEN, *[Kind.DATA] * most]
    room.keep((0, 1), 1, held(Kind.OPEN, 1, 9), memoryview(bytes(9)))
    room.keep((0, 1), 1, data, room.room((0, 1), 1, size))


def test_a_peer_sends_no_more_frames_than_there_may_be() -> None:
    room = unexpected_frames.UnexpectedFrames()
    room.keep((0, 0), 1, held(Kind.OPEN, 0, 0), memoryview(b""))
    data = held(Kind.DATA, 0, 1)
    frames = unexpected_frames.AHEAD_BYTES // unexpected_frames.charge(1)
    assert frames + 2 * unexpected_frames.MAX_IN_FLIGHT <= unexpected_frames.MAX_FRAMES
    for _ in range(frames):
        room.keep((0, 0), 1, data, room.room((0, 0), 1, 1))
    with pytest.raises(ProtocolError, match="too far ahead"):
        room.keep((0, 0), 1, data, memoryview(b"x"))


# Who is far away, and does not wait until the others have opened.


@pytest.mark.parametrize("bound", [unexpected_frames.AHEAD_BYTES, 300_000, 1])
@pytest.mark.parametrize("size", [2, 3])
def test_data_goes_ahead_of_the_others_calls(monkeypatch, size: int, bound: int):
    monkeypatch.setattr(groups, "AHEAD_BYTES", bound)
    with distant(size) as comms:
        arrays = [draw(comm.rank) for comm in comms]
        expected = reference(arrays)
        first = comms[0].all_reduce_async(arrays[0])
        keeper = comms[1]  # the next along the ring
        chunk = 4 * (LARGE // size)
        if bound >= chunk:
            eventually(lambda: unexpected(keeper) >= chunk)
            assert ahead(comms[0]) == unexpected(keeper)
        rest = together(comms[1:], lambda c: c.all_reduce(arrays[c.rank]))
        for result in [first.result(20), *rest]:
            np.testing.assert_array_equal(result, expected)
        settled(comms)


def test_near_members_wait() -> None:
    with world("tcp", 2) as comms:
        pending = comms[0].all_reduce_async(draw(0))
        comms[0].all_reduce_async(draw(0), tag="another")
        eventually(lambda: len(comms[1]._group._table.unexpected._frames) == 2)
        assert unexpected(comms[1]) == ahead(comms[0]) == 0
        assert not pending.done()


def test_every_kind_of_call_may_run_ahead() -> None:
    calls = {
        "reduce_scatter": lambda c: c.reduce_scatter(draw(c.rank, 3 * LARGE)),
        "all_gather": lambda c: c.all_gather(draw(c.rank)),
        "all_to_all": lambda c: c.all_to_all(draw(c.rank, 3 * LARGE)),
        "broadcast": lambda c: c.broadcast(draw(c.rank), root=0),
        "tree": lambda c: c.all_reduce(draw(c.rank), algorithm="tree"),
        "halving": lambda c: c.all_reduce(draw(c.rank), algorithm="halving_doubling"),
        "int8": lambda c: c.all_reduce(draw(c.rank), compression="int8"),
    }
    with world("tcp", 3) as near, distant(3) as far:
        for name, call in calls.items():
            expected, ran_ahead = together(near, call), 0
            for late in far:

                def one(comm, call=call, late=late):
                    kept = unexpected_soon(comm) if comm is late else 0
                    return comm.rank, call(comm), kept

                for rank, result, kept in together(far, one):
                    np.testing.assert_array_equal(result, expected[rank], err_msg=name)
                    ran_ahead += kept
            assert ran_ahead > 0, name
        settled(far)


def test_who_gives_up_takes_back_what_ran_ahead() -> None:
    with distant(2) as comms:
        for _ in range(3):
            mine = draw(0)
            late = outcome(lambda mine=mine: comms[0].all_reduce(mine, timeout=0.2))
            assert isinstance(late, Timeout)
            np.testing.assert_array_equal(mine, draw(0))
            eventually(lambda: unexpected(comms[1]) == 0)
            assert ahead(comms[0]) == 0
            theirs = outcome(lambda: comms[1].all_reduce(draw(1)))
            assert isinstance(theirs, CollectiveAborted)
        results = together(comms, lambda c: c.all_reduce(draw(c.rank)))
        np.testing.assert_array_equal(results[0], results[1])
        settled(comms)


def test_a_call_that_disagrees_with_what_ran_ahead_aborts_on_all() -> None:
    with distant(2) as comms:
        pending = comms[0].all_reduce_async(draw(0))
        eventually(lambda: unexpected(comms[1]) > 0)
        other = outcome(lambda: comms[1].all_reduce(draw(1, LARGE + 1)))
        for error in (outcome(lambda: pending.result(30)), other):
            assert isinstance(error, CollectiveAborted)
        results = together(comms, lambda c: c.all_reduce(draw(c.rank)))
        np.testing.assert_array_equal(results[0], results[1])
        settled(comms)


def test_data_that_is_half_here_when_the_call_comes(monkeypatch) -> None:
    """The frame's room was given by nobody's operation; the call came in between."""
    with distant(2) as comms:
        receiver = comms[1]._group
        given = []
        plain = groups.Group.place

        def place(self, link, header):
            room = plain(self, link, header)
            if self is receiver and header.kind is Kind.DATA and not given:
                given.append(comms[1].all_reduce_async(draw(1)))
            return room

        monkeypatch.setattr(groups.Group, "place", place)
        mine = comms[0].all_reduce(draw(0), timeout=20)
        np.testing.assert_array_equal(given[0].result(20), mine)
        settled(comms)


def test_a_member_that_dies_after_it_ran_ahead_is_lost() -> None:
    with distant(2) as comms:
        comms[0].all_reduce_async(draw(0))
        eventually(lambda: unexpected(comms[1]) > 0)
        comms[0]._crash()
        error = outcome(lambda: comms[1].all_reduce(draw(1), timeout=10))
        assert isinstance(error, PeerLost)
        assert unexpected(comms[1]) == 0


@pytest.mark.slow  # thousands of calls
def test_many_small_calls_run_no_further_ahead_than_there_is_room() -> None:
    """A tree sends eight frames for a handful of numbers."""
    with distant(2) as comms:
        ones = np.ones(64, np.float32)

        def start(comm):
            return [
                comm.all_reduce_async(ones.copy(), algorithm="tree") for _ in range(600)
            ]

        early = start(comms[1])
        assert unexpected_soon(comms[0]) > 0
        for pending in (*early, *start(comms[0])):
            assert pending.result(20)[0] == 2
        settled(comms)


def test_what_is_received_was_not_given_up_by_its_sender() -> None:
    """The receiver would be done at once, the sender not for 0.4 s."""
    slow = {1: FaultPlan(shapes=[Shape(delay=0.4)])}
    with patch.object(TcpLink, "round_trip", 0.1), world("tcp", 2, slow) as comms:
        sent = comms[0].send_async(draw(0), 1, timeout=0.3)
        received = outcome(lambda: comms[1].recv(draw(1), 0, timeout=5))
        assert isinstance(outcome(lambda: sent.result(30)), Timeout)
        assert isinstance(received, CollectiveAborted)


def test_a_call_that_the_receiver_leaves_out_keeps_nothing() -> None:
    large = np.ones(unexpected_frames.AHEAD_BYTES // 16 * 3, np.float32)
    with distant(2) as comms:
        left_out = comms[0].broadcast_async(large, 0, turn=4, tag="x", timeout=1)
        eventually(lambda: unexpected(comms[1]) == large.nbytes)
        comms[1].broadcast_async(np.empty(8, np.float32), 0, turn=5, tag="x")
        assert isinstance(outcome(lambda: left_out.result(30)), Timeout)
        eventually(lambda: unexpected(comms[1]) == 0)
        together(comms, lambda c: c.broadcast(large.copy(), 0, tag="y"))


def test_who_says_goodbye_leaves_no_data_behind() -> None:
    with distant(2) as comms:
        comms[0].all_reduce_async(draw(0))
        eventually(lambda: unexpected(comms[1]) > 0)
        comms[0].close(timeout=0)
        eventually(lambda: unexpected(comms[1]) == 0)


def test_data_after_the_group_has_ended_is_no_offence() -> None:
    """Its sender had not heard of the end: it must not count as dead for that."""
    with distant(3) as comms:
        group, link = comms[2]._group, comms[2]._group.links[0]
        told = Frame(Kind.LOST, step=1, payload=b"gone")
        comms[0]._group.loop.ask(lambda: comms[0]._group.links[2].send(told))
        eventually(lambda: group.fault is not None)
        data = held(Kind.DATA, 7, 100)
        room = group.loop.ask(lambda: group.place(link, data))
        assert len(room) == 100
        group.loop.ask(lambda: group.deliver(link, data, room))
