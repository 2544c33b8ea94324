"""Reductions through the memory of one machine: bits, refusals, deaths, leftovers."""

import json
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from helpers.worlds.communicators import (
    endpoints,
    eventually,
    member,
    outcome,
    together,
    world,
)
from helpers.worlds.member_process import SIZE, contribution
from helpers.worlds.shared_memory_reductions import (
    CASES,
    LARGE,
    SMALL,
    draw,
    shared_scratch,
    ways_of,
)

from pcp.errors import CollectiveAborted, PeerLost, RuntimeFault, Timeout
from pcp.runtime.collectives import in_place_reduce
from pcp.runtime.collectives.reduction import bounds
from pcp.runtime.collectives.schedule import reference
from pcp.runtime.group import group
from pcp.runtime.memory.shared_segment import Segment
from pcp.runtime.transport.frame import Frame, Kind


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def warm(comms, count: int = LARGE) -> None:
    """Everybody maps everybody's memory."""
    together(comms, lambda c: c.all_reduce(draw(c.rank, count)))
    assert all(shared_scratch(c).reached and shared_scratch(c).possible for c in comms)


@contextmanager
def warmed(size: int, count: int = LARGE):
    with world("memory", size) as comms:
        warm(comms, count)
        yield comms


def test_nobody_waits_while_another_member_commits(monkeypatch) -> None:
    """Who hears opening and vote of a late member at once commits with its own vote."""
    both, plain = (
        threading.Barrier(2, timeout=5),
        in_place_reduce.SmallInPlaceReduce.commit,
    )

    def commit(self) -> np.ndarray:
        if self._plain.size == SMALL:
            both.wait()
        return plain(self)

    def late(comm) -> np.ndarray:
        array = draw(comm.rank, SMALL)
        time.sleep(0.2 * comm.rank)
        return comm.all_reduce(array)

    with warmed(2) as comms:
        monkeypatch.setattr(in_place_reduce.SmallInPlaceReduce, "commit", commit)
        total = draw(0, SMALL) + draw(1, SMALL)
        assert all((found == total).all() for found in together(comms, late))


@pytest.fixture
def ways(monkeypatch) -> list[str | None]:
    """How each operation went, as it ends."""
    return ways_of(monkeypatch, in_place_reduce.InPlaceReduce)


@pytest.mark.parametrize("size", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_the_bits_are_those_of_the_ring(size: int, ways) -> None:
    with warmed(size) as comms:
        for op, dtype, count in CASES:
            arrays = [draw(r, count, dtype) for r in range(size)]
            ways.clear()
            outs = together(
                comms, lambda c, a=arrays, o=op: c.all_reduce(a[c.rank].copy(), o)
            )
            wanted = reference(arrays, op).tobytes()
            assert [out.tobytes() == wanted for out in outs] == [True] * size
            assert ways == ["memory"] * size, (op, dtype)


def test_scattered_rows_and_a_ring_that_was_set(ways) -> None:
    with warmed(3) as comms:
        arrays = [draw(r, 30_000).reshape(300, 100) for r in range(3)]
        ways.clear()
        for sizes in (None, [300, 0, 0], [1, 200, 99]):
            parts = together(
                comms, lambda c, s=sizes: c.reduce_scatter(arrays[c.rank], sizes=s)
            )
            rows = sizes or [b - a for a, b in bounds(300, 3)]
            assert [len(part) for part in parts] == rows
            whole = np.concatenate(parts)
            np.testing.assert_allclose(whole, sum(arrays), atol=1e-4)
        together(comms, lambda c: c.set_ring_order([0, 2, 1]))
        outs = together(comms, lambda c: c.all_reduce(arrays[c.rank].copy()))
        wanted = reference(arrays, order=[0, 2, 1]).tobytes()
        assert [out.tobytes() == wanted for out in outs] == [True] * 3
        assert ways == ["memory"] * 12


def test_many_at_once_and_segments_come_back(ways) -> None:
    """More under way than a member may lease; afterwards nothing is leased twice."""
    with warmed(2) as comms:

        def burst(c):
            arrays = [draw(c.rank + i, 30_000) for i in range(40)]
            for pending in [
                c.all_reduce_async(a, tag=f"t{i % 5}") for i, a in enumerate(arrays)
            ]:
                pending.result()
            return arrays

        for _ in range(3):
            ours, theirs = together(comms, burst)
            for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                wanted = reference([draw(i, 30_000), draw(i + 1, 30_000)])
                assert a.tobytes() == b.tobytes() == wanted.tobytes()
        assert {"memory", "ring"} == set(ways)
        warm(comms)
        for comm in comms:
            own = shared_scratch(comm)
            assert comm._group.loop.ask(lambda o=own: len(o._leased)) <= 1


def test_a_member_that_cannot_map_sends_all_along_the_ring(monkeypatch, ways) -> None:
    with world("memory", 3) as comms:
        monkeypatch.setattr(
            shared_scratch(comms[1]), "meet", _nothing(shared_scratch(comms[1]))
        )
        arrays = [draw(r, LARGE) for r in range(3)]
        for _ in range(3):
            outs = together(comms, lambda c: c.all_reduce(arrays[c.rank].copy()))
            wanted = reference(arrays).tobytes()
            assert [out.tobytes() == wanted for out in outs] == [True] * 3
        assert set(ways) == {"ring"}
        assert not any(shared_scratch(c).possible for c in comms), (
            "nobody offers any more"
        )


def _nothing(own):
    def meet(peer, said, nbytes):
        own.refused()

    return meet


@pytest.mark.parametrize(("processors", "watched"), [(2, 1), (1, 0)])
def test_news_is_expected_of_neighbours_while_an_operation_is_under_way(
    monkeypatch, processors: int, watched: int
) -> None:
    monkeypatch.setattr(group, "_PROCESSORS", processors)
    with world("memory", 2) as comms:
        loops = [comm._group.loop for comm in comms]

        def expecting() -> list[int]:
            return [loop.ask(lambda loop=loop: loop.expecting) for loop in loops]

        assert expecting() == [0, 0]
        pending = comms[0].all_reduce_async(draw(0, 1000))
        assert expecting() == [watched, 0]
        comms[1].all_reduce(draw(1, 1000))
        pending.result(10)
        eventually(lambda: expecting() == [0, 0])
        given_up = outcome(lambda: comms[0].all_reduce(draw(0, 9), timeout=0.1))
        assert isinstance(given_up, Timeout)
        eventually(lambda: expecting() == [0, 0])


def test_calls_that_disagree_cost_no_memory(ways) -> None:
    """Their openings may be read by nobody, or when their segments are gone."""
    ops = ("sum", "sum", "max")
    with warmed(3, 70_000) as comms:
        for _ in range(4):
            together(comms, lambda c: c.all_reduce(draw(c.rank, 70_000)))
            faults = together(
                comms,
                lambda c: outcome(
                    lambda: c.all_reduce(draw(c.rank, 70_000), ops[c.rank])
                ),
            )
            assert [type(fault) for fault in faults] == [CollectiveAborted] * 3
        ways.clear()
        for _ in range(2):
            together(comms, lambda c: c.all_reduce(draw(c.rank, 70_000)))
        assert ways == ["memory"] * 6
        for comm in comms:
            own = shared_scratch(comm)
            assert comm._group.loop.ask(lambda o=own: len(o._leased)) <= 1


def test_memory_that_is_suddenly_out_of_reach_aborts_on_all(monkeypatch) -> None:
    with warmed(2) as comms:
        # A larger array needs a segment that nobody has mapped.
        plain = Segment.map.__func__
        refuse = [True]

        def once(cls, offer, least, most):
            return None if refuse and refuse.pop() else plain(cls, offer, least, most)

        monkeypatch.setattr(Segment, "map", classmethod(once))
        arrays = [draw(r, 2 * LARGE) for r in range(2)]
        faults = together(
            comms, lambda c: outcome(lambda: c.all_reduce(arrays[c.rank], timeout=10))
        )
        assert all(isinstance(fault, CollectiveAborted) for fault in faults), faults
        assert any("can no longer map" in str(fault) for fault in faults)
        for rank in range(2):
            np.testing.assert_array_equal(arrays[rank], draw(rank, 2 * LARGE))
        outs = together(comms, lambda c: c.all_reduce(arrays[c.rank]))
        wanted = reference([draw(r, 2 * LARGE) for r in range(2)]).tobytes()
        assert [out.tobytes() == wanted for out in outs] == [True] * 2


def test_a_member_that_dies_after_it_opened_is_lost_not_unreached(monkeypatch) -> None:
    """Its memory is out of reach before the news of its death have come."""
    with warmed(3) as comms:
        plain = shared_scratch(comms[0]).meet

        def meet(peer, said, nbytes):
            if peer == 2:
                comms[2]._group.loop.call(lambda: comms[2]._group.close(crash=True))
                return None
            return plain(peer, said, nbytes)

        monkeypatch.setattr(shared_scratch(comms[0]), "meet", meet)
        arrays = [draw(r, LARGE) for r in range(3)]
        faults = together(
            comms, lambda c: outcome(lambda: c.all_reduce(arrays[c.rank], timeout=10))
        )
        assert [type(fault) for fault in faults[:2]] == [PeerLost] * 2
        for rank in range(2):
            np.testing.assert_array_equal(arrays[rank], draw(rank, LARGE))


WORD = {"maps": True, "live": []}


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (7, PeerLost),
        ({"maps": True}, PeerLost),
        (
            WORD | {"id": 0, "done": [[0, 1 << 70]], "pid": 1, "fd": 1},
            CollectiveAborted,
        ),
        (WORD | {"id": 1 << 80, "done": [], "pid": -1, "fd": -1}, CollectiveAborted),
    ],
)
def test_nonsense_in_an_open_frame_ends_no_more_than_its_sender(said, error) -> None:
    with warmed(2) as comms:
        facts = {"kind": "all_reduce", "dtype": "float32", "shape": [LARGE]}
        descriptor = json.dumps(facts | {"op": "sum"}).encode()
        word = b"p" + json.dumps(said).encode()
        payload = len(descriptor).to_bytes(4, "big") + descriptor + word
        group, seq = comms[1]._group, comms[0]._group._posted[0]
        frame = Frame(Kind.OPEN, seq=seq, payload=payload)
        pending = comms[0].all_reduce_async(draw(0, LARGE), timeout=5)
        group.loop.ask(lambda: group.send(0, frame))
        assert type(outcome(pending.result)) is error
        assert comms[0]._group.loop.ask(lambda: True), "the loop lives"


@pytest.mark.parametrize("count", [LARGE, LARGE // 8])
@pytest.mark.parametrize("offset", [0, LARGE, 1 << 60])
def test_a_word_about_more_than_there_is_loses_its_sender(offset, count) -> None:
    with warmed(2) as comms:
        group, seq = comms[1]._group, comms[0]._group._posted[0]
        late = comms[1].all_reduce_async(draw(1, count), timeout=5)
        word = Frame(Kind.DATA, seq=seq, step=1 << 31, offset=offset, payload=b"\1")
        group.loop.ask(lambda: group.send(0, word))
        first = comms[0].all_reduce_async(draw(0, count), timeout=5)
        results = outcome(first.result), outcome(late.result)
        eventually(lambda: isinstance(comms[0].fault, PeerLost))
        if count == LARGE:
            assert all(isinstance(result, RuntimeFault) for result in results)


@pytest.mark.parametrize(
    ("do", "kill", "survives"),
    [
        slow("thrice", {"kind": "OPEN", "skip": 2}, False),
        slow("thrice", {"kind": "OPEN", "skip": 5}, False),
        slow("thrice", {"kind": "DONE", "skip": 3}, False),
        slow("thrice_larger", {"kind": "OPEN", "skip": 3}, False),
        slow("thrice_larger", {"kind": "DATA", "step": 1 << 31, "skip": 1}, False),
        slow("thrice_larger", {"kind": "DATA", "step": (1 << 31) + 1}, False),
        ("thrice_larger", {"kind": "DATA", "step": (1 << 31) + 1, "skip": 1}, False),
        slow("thrice_larger", {"kind": "DONE", "skip": 2}, True),
        ("thrice_larger", {"kind": "DONE", "skip": 3}, True),
    ],
)
def test_killed_while_its_memory_is_read(do, kill, survives, ways) -> None:
    """A dead member's sum is still there for those who know that it is whole."""
    size = SIZE if do == "thrice" else 4 * SIZE
    with member(do=do, kill=kill) as child, endpoints(2) as made:
        addresses = [made[0].address, made[1].address, child.line()]
        child.tell(json.dumps(addresses))
        comms = together([0, 1], lambda rank: made[rank].form(1, addresses, rank, 20))

        def run(c):
            arrays = [contribution(c.rank, size) for _ in range(3)]
            faults = [outcome(lambda a=a: c.all_reduce(a, timeout=20)) for a in arrays]
            return arrays, [isinstance(fault, PeerLost) for fault in faults]

        results = together(comms, run)
        assert child.wait() == -signal.SIGKILL
    whole = reference([contribution(r, size) for r in range(3)]).tobytes()
    assert results[0][1] == results[1][1], "survivors agree about each"
    assert results[0][1][2]
    if survives:
        assert results[0][1] == [False, False, True]
        assert "memory" in ways
    for rank, (arrays, lost) in enumerate(results):
        for array, fault in zip(arrays, lost, strict=True):
            wanted = contribution(rank, size).tobytes() if fault else whole
            assert array.tobytes() == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("count", "longest"), [(LARGE, 0.004), (LARGE // 4, 0.001)])
def test_crashes_at_random_moments_leave_survivors_agreeing(count, longest) -> None:
    rng = np.random.default_rng(4)
    whole = reference([draw(r, count) for r in range(3)]).tobytes()
    outcomes = []
    for _ in range(8):
        with warmed(3) as comms:
            arrays = [draw(r, count) for r in range(3)]
            delay = float(rng.uniform(0, longest))

            def run(c, arrays=arrays, delay=delay):
                if c.rank == 2:
                    c._group.loop.call(
                        lambda: c._group.later(
                            delay, lambda: c._group.close(crash=True)
                        )
                    )
                return outcome(lambda: c.all_reduce(arrays[c.rank], timeout=10))

            results = together(comms, run)[:2]
        failed = [isinstance(result, PeerLost) for result in results]
        assert failed in ([True] * 2, [False] * 2), results
        outcomes.append(failed[0])
        for rank in range(2):
            wanted = draw(rank, count).tobytes() if failed[0] else whole
            assert arrays[rank].tobytes() == wanted
    assert any(outcomes) or count < LARGE, "no crash came in time to matter"
