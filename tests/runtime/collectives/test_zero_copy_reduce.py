"""Reductions into new arrays: straight out of and into the members' own memory."""

import json
import struct
import threading

import numpy as np
import pytest
from helpers.present import present
from helpers.worlds.communicators import (
    eventually,
    outcome,
    together,
    world,
)
from helpers.worlds.shared_memory_reductions import (
    LARGE,
    SMALL,
    ZERO_COPY,
    draw,
    in_private_memory,
    place,
    shared,
    shared_scratch,
    ways_of,
)

from pcp.errors import CollectiveAborted, PeerLost, RuntimeFault
from pcp.runtime.collectives import zero_copy_reduce
from pcp.runtime.collectives.schedule import reference
from pcp.runtime.memory.shared_arrays import Place, SharedArrays
from pcp.runtime.transport.frame import Frame, Kind


@pytest.fixture(autouse=True)
def pool(monkeypatch) -> SharedArrays:
    """Memory for this test alone; others may have left theirs to the collector."""
    return in_private_memory(monkeypatch)


@pytest.fixture
def ways(monkeypatch) -> list[str | None]:
    """How each operation went, as it ends."""
    return ways_of(monkeypatch, zero_copy_reduce.ZeroCopyReduce)


def test_without_zero_copy_the_result_is_a_new_array(ways) -> None:
    with ZERO_COPY.warmed(2) as comms:
        ways.clear()
        for count, options in [
            (5, {}),
            (LARGE, {"algorithm": "ring"}),
            (LARGE, {"algorithm": "tree"}),
            (LARGE, {"compression": "fp16"}),
            (5, {"donate": True}),
        ]:
            arrays = [np.full(count, 1.5 + r, np.float32) for r in range(2)]
            for array in arrays:
                array.flags.writeable = False
            outs = together(
                comms, lambda c, a=arrays, o=options: c.all_reduced(a[c.rank], **o)
            )
            assert [bool((out == 4).all()) for out in outs] == [True] * 2
            assert [float(array[0]) for array in arrays] == [1.5, 2.5]
        assert not ways


def test_worlds_that_share_no_memory_give_the_same() -> None:
    arrays = [draw(r, LARGE) for r in range(2)]
    wanted = reference(arrays).tobytes()
    for carrier in ("in_process", "tcp"):
        with world(carrier, 2) as comms:
            outs = together(comms, lambda c: c.all_reduced(shared(arrays[c.rank])))
        assert [out.tobytes() == wanted for out in outs] == [True] * 2


def test_results_are_reduced_again_and_their_memory_comes_back(pool, ways) -> None:
    """Operation after operation in the memory of the first few."""
    with ZERO_COPY.warmed(2) as comms:
        before = set(pool.live)

        def run(c):
            array = shared(draw(c.rank, LARGE))
            for _ in range(6):
                array = c.all_reduced(array, "mean")
            return array

        for _ in range(3):
            ways.clear()
            outs = together(comms, run)
            wanted = reference([draw(r, LARGE) for r in range(2)], "mean").tobytes()
            assert [out.tobytes() == wanted for out in outs] == [True] * 2
            assert ways == ["memory"] * 12
            del outs
        # Two results, two arguments, and one of each that is just being left.
        assert len(set(pool.live) - before) <= 6


def test_memory_that_its_owner_gave_back_is_kept_by_nobody(monkeypatch, pool) -> None:
    with ZERO_COPY.warmed(2, 4 * LARGE) as comms:
        monkeypatch.setattr(pool._arena, "_limit", 0)
        for _ in range(2):
            together(comms, lambda c: c.all_reduced(draw(c.rank, SMALL)))
        for comm in comms:
            known = shared_scratch(comm).arrays._known[1 - comm.rank]
            assert known
            assert max(s.nbytes for s in known.values()) < 4 * LARGE


def test_members_may_want_it_new_or_in_place(ways) -> None:
    """They meet on the ring; nothing that was leased is forgotten over it."""
    with ZERO_COPY.warmed(3) as comms:
        together(comms, lambda c: c.all_reduce(draw(c.rank, LARGE)))
        ways.clear()
        for count in (5, LARGE, SMALL):
            arrays = [draw(r, count) for r in range(3)]
            wanted = reference(arrays).tobytes()
            for new in ((0,), (1, 2), (2,)):
                given = [array.copy() for array in arrays]
                together(comms, lambda c: c.all_reduce(draw(c.rank, LARGE)))
                outs = together(
                    comms,
                    lambda c, g=given, n=new: (
                        c.all_reduced if c.rank in n else c.all_reduce
                    )(g[c.rank]),
                )
                assert [out.tobytes() == wanted for out in outs] == [True] * 3
                same = [out is array for out, array in zip(outs, given, strict=True)]
                assert same == [rank not in new for rank in range(3)]
        assert set(ways) == {"ring"}
        together(comms, lambda c: c.all_reduce(draw(c.rank, LARGE)))
        for comm in comms:
            own = shared_scratch(comm)
            assert comm._group.loop.ask(lambda o=own: len(o._leased)) <= 1


def test_what_was_given_up_is_never_used_again(pool) -> None:
    """Somebody may still be writing there."""
    with ZERO_COPY.warmed(2) as comms:
        plain, spoilt = pool.spoil, []

        def spoil(room: Place) -> None:
            spoilt.append(room.number)
            plain(room)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(pool, "spoil", spoil)
            arrays = [shared(draw(r, LARGE)) for r in range(2)]
            faults = together(
                comms,
                lambda c: outcome(
                    lambda: c.all_reduced(arrays[c.rank], ("sum", "max")[c.rank])
                ),
            )
        assert [type(fault) for fault in faults] == [CollectiveAborted] * 2
        del faults
        assert len(spoilt) == 2
        outs = together(comms, lambda c: c.all_reduced(arrays[c.rank]))
        wanted = reference([draw(r, LARGE) for r in range(2)]).tobytes()
        assert [out.tobytes() == wanted for out in outs] == [True] * 2
        assert not {present(place(out)).number for out in outs} & set(spoilt)
        assert not set(pool.live) & set(spoilt)


_LIVE = struct.pack(">?H1Q", True, 1, 0)
_OFFER = struct.pack(">QQII16s", 0, 0, 1, 1, bytes(16))
_FAR = struct.pack(">QQII16s", 0, 1 << 63, (1 << 32) - 1, 1, bytes(16))


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"s", PeerLost),
        (b"s\1", PeerLost),
        (b"s\1\xff\xff" + bytes(80), PeerLost),
        (b"s" + _LIVE + b"?", PeerLost),
        (b"s" + _LIVE + _OFFER, PeerLost),
        (b"s" + _LIVE + 2 * _OFFER, PeerLost),
        (b"s" + _LIVE + 2 * _OFFER + bytes(9), PeerLost),
        (b"s" + _LIVE + _OFFER + _FAR + bytes(8), CollectiveAborted),
        (b"s" + _LIVE, CollectiveAborted),
        (b"p" + _LIVE, PeerLost),
        (b"p{}", PeerLost),
    ],
)
def test_nonsense_in_an_open_frame_ends_no_more_than_its_sender(said, error) -> None:
    with ZERO_COPY.warmed(2) as comms:
        facts = {"kind": "all_reduce", "dtype": "float32", "shape": [LARGE]}
        descriptor = json.dumps(facts | {"op": "sum"}).encode()
        payload = len(descriptor).to_bytes(4, "big") + descriptor + said
        group, seq = comms[1]._group, comms[0]._group._table.outcomes._next[0]
        pending = comms[0].all_reduced_async(draw(0, LARGE), timeout=5)
        frame = Frame(Kind.OPEN, seq=seq, payload=payload)
        group.loop.ask(lambda: group.send(0, frame))
        assert type(outcome(pending.result)) is error
        assert comms[0]._group.loop.ask(lambda: True), "the loop lives"


@pytest.mark.parametrize("count", [LARGE, SMALL])
def test_a_word_out_of_turn_loses_its_sender(count) -> None:
    with ZERO_COPY.warmed(2) as comms:
        group, seq = comms[1]._group, comms[0]._group._table.outcomes._next[0]
        late = comms[1].all_reduced_async(draw(1, count), timeout=5)
        word = Frame(Kind.DATA, seq=seq, step=1 << 31, payload=b"\1")
        group.loop.ask(lambda: group.send(0, word))
        first = comms[0].all_reduced_async(draw(0, count), timeout=5)
        whole = reference([draw(r, count) for r in range(2)]).tobytes()
        for pending in (first, late):  # who had all it needs may have ended before
            found = outcome(pending.result)
            if isinstance(found, np.ndarray):
                assert found.tobytes() == whole
            else:
                assert isinstance(found, RuntimeFault)
        eventually(lambda: isinstance(comms[0].fault, PeerLost))


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_who_dies_while_it_writes_leaves_no_result(monkeypatch, turns: int) -> None:
    monkeypatch.setattr(zero_copy_reduce, "TURN_BYTES", 256 << 10)
    plain, left = zero_copy_reduce.ZeroCopyReduce._reduce_on, [turns]
    with ZERO_COPY.warmed(3) as comms:

        def reduce_on(self) -> None:
            if self._rank == 2 and not left[0]:
                comms[2]._group.close(crash=True)
                return
            left[0] -= self._rank == 2
            plain(self)

        monkeypatch.setattr(zero_copy_reduce.ZeroCopyReduce, "_reduce_on", reduce_on)
        arrays = [shared(draw(r, LARGE)) for r in range(3)]
        faults = together(
            comms, lambda c: outcome(lambda: c.all_reduced(arrays[c.rank], timeout=10))
        )
        # Or its token is gone before the news of it have come.
        for fault in faults[:2]:
            assert isinstance(fault, (PeerLost, CollectiveAborted)), fault
        for rank, array in enumerate(arrays):
            assert array.tobytes() == draw(rank, LARGE).tobytes()


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_what_was_read_too_late_is_given_up(monkeypatch, count: int) -> None:
    """Rank 0 has opened and voted, is closed, and goes on with its array; rank 1, which
    was stopped meanwhile, has all it needs for a sum over what is there now."""
    begun, ended = threading.Event(), threading.Event()
    for form in (zero_copy_reduce.ZeroCopyReduce, zero_copy_reduce.SmallZeroCopyReduce):
        plain = form._proceed

        def proceed(self, plain=plain) -> None:
            if self._rank == 1 and not begun.is_set():
                begun.set()
                ended.wait(30)
            plain(self)

        monkeypatch.setattr(form, "_proceed", proceed)
    begun.set()
    with ZERO_COPY.warmed(2, count) as comms:
        begun.clear()
        arrays = [shared(draw(r, count)) for r in range(2)]
        late = comms[1].all_reduced_async(arrays[1], timeout=10)
        first = comms[0].all_reduced_async(arrays[0], timeout=10)
        assert begun.wait(30)
        if count == SMALL:
            eventually(lambda: comms[0]._group.in_flight and voted(comms[0]))
        comms[0]._crash()
        assert isinstance(outcome(first.result), RuntimeFault)
        arrays[0].fill(1000)
        ended.set()
        fault = outcome(late.result)
        assert isinstance(fault, RuntimeFault), fault
        if count == SMALL:
            assert "rank 0 has ended it without rank 1" in str(fault)


def voted(comm) -> bool:
    """Whether all of a member's operations are voted for."""
    group = comm._group
    return group.loop.ask(
        lambda: all(op.voted for op in group._table.operations.values())
    )
