"""In-place reductions in memory that members share: refusals, deaths, leftovers."""

import json
import threading
import time

import numpy as np
import pytest
from helpers.worlds.communicators import (
    eventually,
    outcome,
    together,
    world,
)
from helpers.worlds.shared_memory_reductions import (
    IN_PLACE,
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
from pcp.runtime.transport.frame import Frame, Kind


@pytest.fixture
def ways(monkeypatch) -> list[str | None]:
    """How each operation went, as it ends."""
    return ways_of(monkeypatch, in_place_reduce.InPlaceReduce)


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

    with IN_PLACE.warmed(2) as comms:
        monkeypatch.setattr(in_place_reduce.SmallInPlaceReduce, "commit", commit)
        total = draw(0, SMALL) + draw(1, SMALL)
        assert all((found == total).all() for found in together(comms, late))


def test_scattered_rows_and_a_ring_that_was_set(ways) -> None:
    with IN_PLACE.warmed(3) as comms:
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
        pending.result(30)
        eventually(lambda: expecting() == [0, 0])
        given_up = outcome(lambda: comms[0].all_reduce(draw(0, 9), timeout=0.1))
        assert isinstance(given_up, Timeout)
        eventually(lambda: expecting() == [0, 0])


def test_calls_that_disagree_cost_no_memory(ways) -> None:
    """Their openings may be read by nobody, or when their segments are gone."""
    ops = ("sum", "sum", "max")
    with IN_PLACE.warmed(3, 70_000) as comms:
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


def test_a_member_that_dies_after_it_opened_is_lost_not_unreached(monkeypatch) -> None:
    """Its memory is out of reach before the news of its death have come."""
    with IN_PLACE.warmed(3) as comms:
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
    with IN_PLACE.warmed(2) as comms:
        facts = {"kind": "all_reduce", "dtype": "float32", "shape": [LARGE]}
        descriptor = json.dumps(facts | {"op": "sum"}).encode()
        word = b"p" + json.dumps(said).encode()
        payload = len(descriptor).to_bytes(4, "big") + descriptor + word
        group, seq = comms[1]._group, comms[0]._group._table.outcomes._next[0]
        frame = Frame(Kind.OPEN, seq=seq, payload=payload)
        pending = comms[0].all_reduce_async(draw(0, LARGE), timeout=5)
        group.loop.ask(lambda: group.send(0, frame))
        assert type(outcome(pending.result)) is error
        assert comms[0]._group.loop.ask(lambda: True), "the loop lives"


@pytest.mark.parametrize("count", [LARGE, LARGE // 8])
@pytest.mark.parametrize("offset", [0, LARGE, 1 << 60])
def test_a_word_about_more_than_there_is_loses_its_sender(offset, count) -> None:
    with IN_PLACE.warmed(2) as comms:
        group, seq = comms[1]._group, comms[0]._group._table.outcomes._next[0]
        late = comms[1].all_reduce_async(draw(1, count), timeout=5)
        word = Frame(Kind.DATA, seq=seq, step=1 << 31, offset=offset, payload=b"\1")
        group.loop.ask(lambda: group.send(0, word))
        first = comms[0].all_reduce_async(draw(0, count), timeout=5)
        results = outcome(first.result), outcome(late.result)
        eventually(lambda: isinstance(comms[0].fault, PeerLost))
        if count == LARGE:
            assert all(isinstance(result, RuntimeFault) for result in results)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "longest"), [(LARGE, 0.004), (LARGE // 4, 0.001)])
def test_crashes_at_random_moments_leave_survivors_agreeing(count, longest) -> None:
    rng = np.random.default_rng(4)
    whole = reference([draw(r, count) for r in range(3)]).tobytes()
    outcomes = []
    for _ in range(8):
        with IN_PLACE.warmed(3) as comms:
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
