"""Reductions through the memory of one machine, in place and zero-copy, held alike.

A member that does not map others' memory, or is killed, costs either of them the same.
"""

import signal

import numpy as np
import pytest
from helpers.worlds.communicators import (
    endpoints,
    form_with,
    member,
    outcome,
    together,
    world,
)
from helpers.worlds.member_process import SIZE, contribution
from helpers.worlds.shared_memory_reductions import (
    CASES,
    IN_PLACE,
    LARGE,
    OWN_ARRAYS,
    ZERO_COPY,
    Way,
    draw,
    in_private_memory,
    shared_scratch,
    ways_of,
)

from pcp.errors import CollectiveAborted, PeerLost
from pcp.runtime.collectives.schedule import reference
from pcp.runtime.memory.shared_arrays import SharedArrays


@pytest.fixture(autouse=True)
def pool(monkeypatch) -> SharedArrays:
    """Memory for this test alone; others may have left theirs to the collector."""
    return in_private_memory(monkeypatch)


@pytest.fixture(params=[IN_PLACE, ZERO_COPY], ids=lambda way: way.kind.__name__)
def way(request) -> Way:
    return request.param


@pytest.fixture
def ways(monkeypatch, way: Way) -> list[str | None]:
    """How each operation went, as it ends."""
    return ways_of(monkeypatch, way.kind)


@pytest.mark.parametrize(
    "way",
    [IN_PLACE, ZERO_COPY, OWN_ARRAYS],
    ids=["in-place", "shared-arrays", "own-arrays"],
)
@pytest.mark.parametrize("size", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_the_bits_are_those_of_the_ring(size: int, way: Way, ways) -> None:
    with way.warmed(size) as comms:
        for op, dtype, count in CASES:
            arrays = [draw(r, count, dtype) for r in range(size)]
            given = [way.given(array) for array in arrays]
            ways.clear()
            outs = together(comms, lambda c, g=given, o=op: way.reduce(c, g[c.rank], o))
            wanted = reference(arrays, op).tobytes()
            assert [out.tobytes() == wanted for out in outs] == [True] * size
            assert ways == ["memory"] * size, (op, dtype)
            for out, array, left in zip(outs, arrays, given, strict=True):
                way.check_result(out, array, left)


def test_many_at_once(way: Way, ways) -> None:
    """More than there is memory for; then what is missing goes along the ring."""
    with way.warmed(2) as comms:

        def burst(c):
            arrays = [draw(c.rank + i, 30_000) for i in range(40)]
            starts = [way.start(c, a, tag=f"t{i % 5}") for i, a in enumerate(arrays)]
            return [pending.result(20) for pending in starts]

        for ours, theirs in (together(comms, burst) for _ in range(3)):
            for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                wanted = reference([draw(i, 30_000), draw(i + 1, 30_000)])
                assert a.tobytes() == b.tobytes() == wanted.tobytes()
        assert {"memory", "ring"} == set(ways)
        together(comms, lambda c: way.reduce(c, draw(c.rank, LARGE)))
        for comm in comms:
            own = shared_scratch(comm)
            leased = comm._group.loop.ask(lambda o=own: len(o._leased))
            assert leased <= 1, "afterwards nothing is leased twice"


def test_a_member_that_cannot_map_sends_all_along_the_ring(
    monkeypatch, way: Way, ways
) -> None:
    with world("memory", 3) as comms:
        way.cannot_map(monkeypatch, comms[1])
        arrays = [draw(r, LARGE) for r in range(3)]
        for _ in range(3):
            outs = together(comms, lambda c: way.reduce(c, arrays[c.rank].copy()))
            wanted = reference(arrays).tobytes()
            assert [out.tobytes() == wanted for out in outs] == [True] * 3
        assert set(ways) == {"ring"}
        assert not any(shared_scratch(c).possible for c in comms), "nobody offers more"


def test_memory_that_is_suddenly_out_of_reach_aborts_on_all(
    monkeypatch, way: Way
) -> None:
    with way.warmed(2) as comms:
        # A larger array needs a segment that nobody has mapped.
        arrays = [draw(r, 2 * LARGE) for r in range(2)]
        with monkeypatch.context() as patched:
            way.unmaps(patched, comms[0])
            faults = together(
                comms,
                lambda c: outcome(lambda: way.reduce(c, arrays[c.rank], timeout=10)),
            )
        assert all(isinstance(fault, CollectiveAborted) for fault in faults), faults
        assert any("can no longer map" in str(fault) for fault in faults)
        for rank in range(2):
            np.testing.assert_array_equal(arrays[rank], draw(rank, 2 * LARGE))
        outs = together(comms, lambda c: way.reduce(c, arrays[c.rank]))
        wanted = reference([draw(r, 2 * LARGE) for r in range(2)]).tobytes()
        assert [out.tobytes() == wanted for out in outs] == [True] * 2


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


LAST = {"kind": "DATA", "step": (1 << 31) + 1}
THRICE, LARGER = ("thrice", SIZE), ("thrice_larger", 4 * SIZE)
NEW, NEW_LARGER = ("thrice_straight", SIZE), ("thrice_straight_larger", 4 * SIZE)


@pytest.mark.parametrize(
    ("way", "does", "kill", "survives"),
    [
        slow(IN_PLACE, THRICE, {"kind": "OPEN", "skip": 2}, False),
        slow(IN_PLACE, THRICE, {"kind": "OPEN", "skip": 5}, False),
        slow(IN_PLACE, THRICE, {"kind": "DONE", "skip": 3}, False),
        slow(IN_PLACE, LARGER, {"kind": "OPEN", "skip": 3}, False),
        slow(IN_PLACE, LARGER, {"kind": "DATA", "step": 1 << 31, "skip": 1}, False),
        slow(IN_PLACE, LARGER, LAST, False),
        (IN_PLACE, LARGER, LAST | {"skip": 1}, False),
        slow(IN_PLACE, LARGER, {"kind": "DONE", "skip": 2}, True),
        (IN_PLACE, LARGER, {"kind": "DONE", "skip": 3}, True),
        slow(ZERO_COPY, NEW, {"kind": "OPEN", "skip": 3}, False),
        slow(ZERO_COPY, NEW, {"kind": "DONE", "skip": 2}, False),
        (ZERO_COPY, NEW, {"kind": "DONE", "skip": 3}, False),
        slow(ZERO_COPY, NEW_LARGER, {"kind": "OPEN", "skip": 2}, False),
        slow(ZERO_COPY, NEW_LARGER, LAST, False),
        (ZERO_COPY, NEW_LARGER, LAST | {"skip": 1}, False),
        slow(ZERO_COPY, NEW_LARGER, {"kind": "DONE", "skip": 2}, True),
        (ZERO_COPY, NEW_LARGER, {"kind": "DONE", "skip": 3}, True),
    ],
)
def test_killed_while_its_memory_is_read(
    way: Way, does: tuple[str, int], kill: dict[str, object], survives: bool, ways
) -> None:
    """A dead member's part is there if it said so; survivors agree about that."""
    do, size = does
    with member(do=do, kill=kill) as child, endpoints(2) as made:
        comms = form_with(child, made)

        def run(c):
            one = way.given(contribution(c.rank, size))
            arrays = [np.array(one) if way is IN_PLACE else one for _ in range(3)]
            return arrays, [
                outcome(lambda a=a: way.reduce(c, a, timeout=20)) for a in arrays
            ]

        results = together(comms, run)
        assert child.wait() == -signal.SIGKILL
    whole = reference([contribution(r, size) for r in range(3)]).tobytes()
    lost = [[isinstance(f, Exception) for f in found] for _, found in results]
    assert lost[0] == lost[1], "survivors agree about each"
    assert all(isinstance(found[2], PeerLost) for _, found in results)
    if survives:
        assert lost[0] == [False, False, True]
        assert "memory" in ways
    for rank, (arrays, found) in enumerate(results):
        for array, result in zip(arrays, found, strict=True):
            if isinstance(result, np.ndarray):
                assert result.tobytes() == whole
                way.check_result(result, contribution(rank, size), array)
            else:
                assert isinstance(result, way.gone)
                assert array.tobytes() == contribution(rank, size).tobytes()
