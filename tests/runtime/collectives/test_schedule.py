"""Algorithms as schedules: right sums in simulation, the same bits on the wire."""

import ml_dtypes
import numpy as np
import pytest
from helpers.worlds.communicators import outcome, together, world

from pcp.errors import CollectiveAborted, PeerLost, UsageError
from pcp.runtime.collectives.reduction import declared
from pcp.runtime.collectives.schedule import (
    MemberSchedule,
    Schedule,
    Transfer,
    by_name,
    reference,
    schedule,
    simulate,
)
from pcp.runtime.transport.fault_injection import Fault, FaultPlan
from pcp.wire import Distance

NAMES = ["ring", "halving_doubling", "tree", "central", "two_level:2", "two_level:3"]
WORLDS = [("in_process", 1), ("tcp", 2), ("memory", 3), ("in_process", 6)]
LARGE = 120_007


def draw(rank: int, size: int, dtype="float32") -> np.ndarray:
    return (np.random.default_rng(rank).normal(size=size) * 3).astype(np.dtype(dtype))


@pytest.fixture(scope="module", params=WORLDS, ids=lambda w: f"{w[0]}-{w[1]}")
def comms(request):
    with world(*request.param) as members:
        yield members


@pytest.mark.parametrize("members", [1, 2, 3, 4, 5, 7, 8, 11, 16])
@pytest.mark.parametrize("name", NAMES)
def test_every_contribution_counts_once_on_all_members(name, members):
    # Distinct powers of two: a sum tells who is in it, and how often.
    arrays = [np.full(37, 1 << (2 * rank), np.int64) for rank in range(members)]
    wanted = np.full(37, sum(1 << (2 * rank) for rank in range(members)))
    for result in simulate(name, arrays):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("members", [2, 3, 8, 11, 16, 37])
def test_halving_doubling_sends_what_its_paper_says(members):
    plan = schedule("halving_doubling", members)
    doublings = (members - 1).bit_length()
    assert {t.round for t in plan.transfers} == {*range(2 * doublings)}
    for rank in range(members):
        mine = [t for t in plan.transfers if t.src == rank]
        assert len({(t.round, t.dst) for t in mine}) == 2 * doublings
        chunks = sum(t.last - t.first for t in mine)
        assert chunks / plan.chunks == 2 * (members - 1) / members


@pytest.mark.parametrize("name", NAMES)
def test_what_moves_at_once_are_sums_or_own_values_but_not_both(name):
    """They lie in different memory, and a move reads from one of them."""
    for members in range(1, 40):
        for rank in range(members):
            by_name(name, members, rank)
    mixed = [Transfer(0, 1, 0, 0, 1, True), Transfer(1, 0, 1, 0, 2, False)]
    with pytest.raises(ValueError, match="some of it are sums"):
        MemberSchedule.of(Schedule("mixed", 2, 2, tuple(mixed)), 0)


def test_between_nodes_two_level_sends_little():
    plan = schedule("two_level:4", 8)
    between = [t for t in plan.transfers if t.src // 4 != t.dst // 4]
    assert sum(t.last - t.first for t in between) == 2 * plan.chunks


@pytest.mark.parametrize("dtype", ["float32", "int64", ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_the_wire_gives_the_bits_of_the_simulation(comms, name, dtype):
    sizes = (0, 1, 5, LARGE)
    given = [[draw(c.rank, size, dtype) for c in comms] for size in sizes]
    rows = together(
        comms,
        lambda c: [c.all_reduce(a[c.rank].copy(), algorithm=name) for a in given],
    )
    each = zip(*rows, strict=True)
    for size, arrays, results in zip(sizes, given, each, strict=True):
        wanted = {result.tobytes() for result in simulate(name, arrays)}
        assert len(wanted) == 1
        assert {r.tobytes() for r in results} == wanted, f"of {size} elements"


@pytest.mark.parametrize("op", ["mean", "max", "min", "prod"])
@pytest.mark.parametrize("name", NAMES)
def test_ops(comms, name, op):
    arrays = [draw(c.rank, 5_003) for c in comms]
    results = together(
        comms, lambda c: c.all_reduce(arrays[c.rank].copy(), op, algorithm=name)
    )
    assert len({r.tobytes() for r in results}) == 1
    exact = {"mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}
    wanted = exact[op](np.stack(arrays).astype(np.float64), axis=0)
    np.testing.assert_allclose(results[0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["e3m4", "e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"])
@pytest.mark.parametrize("algorithm", [None, "ring", "tree"])
def test_eight_bit_floats_add_up_in_float32(comms, kind, algorithm):
    dtype = np.dtype(getattr(ml_dtypes, f"float8_{kind}"))
    # In the type itself the small ones would be lost one by one.
    values = [4.0, *[0.125] * (len(comms) - 1)]
    results = together(
        comms,
        lambda c: c.all_reduce(
            np.full(40_000, values[c.rank], dtype), algorithm=algorithm
        ),
    )
    wanted = np.full(40_000, sum(values), np.float32).astype(dtype)
    assert {r.tobytes() for r in results} == {wanted.tobytes()}


def test_bools_are_or_and_and(comms):
    arrays = [np.arange(50_000) % (c.rank + 2) == 0 for c in comms]
    for name in (None, "halving_doubling"):
        for op, wanted in (("sum", np.any), ("prod", np.all)):
            results = together(
                comms,
                lambda c, o=op, n=name: c.all_reduce(
                    arrays[c.rank].copy(), o, algorithm=n
                ),
            )
            for result in results:
                np.testing.assert_array_equal(result, wanted(arrays, axis=0))


def test_a_large_world_reduces_small_arrays_in_few_steps():
    assert declared(100_000, 4) == "ring"
    assert declared(100_000, 10) == "halving_doubling"
    assert declared(10_000_000, 10) == "ring"
    arrays = [draw(rank, 25_000) for rank in range(10)]
    with world("in_process", 10) as members:
        results = together(members, lambda c: c.all_reduce(arrays[c.rank].copy()))
    assert {r.tobytes() for r in results} == {reference(arrays).tobytes()}
    np.testing.assert_allclose(results[0], np.sum(arrays, axis=0), atol=1e-4)


def test_among_far_members_steps_are_few_while_their_round_trips_count():
    far = Distance(0.1, 1e7)  # a link carries 1 MB in a round trip
    assert declared(4_000_000, 3, far) == "halving_doubling"
    assert declared(6_000_004, 3, far) == "ring"
    assert declared(10**12, 3, Distance(0.1)) == "halving_doubling"
    assert declared(4_000_000, 3, Distance(0.004, 1e9)) == "ring"
    assert declared(4_000_000, 2, far) == "ring"
    assert declared(30_000, 3, far) == "eager"
    assert declared(30_000, 20, far) == "tree"
    for members in (3, 11, 100, 4096):  # three times the least that any schedule takes
        for nbytes in (1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11):
            sent = 2 * (members - 1) / members * nbytes / far.bandwidth
            doublings = (members - 1).bit_length()
            ring = declared(int(nbytes), members, far) == "ring"
            took = sent + (members - 1 if ring else doublings) * far.round_trip
            least = nbytes / far.bandwidth + 2 * np.log2(members) * far.round_trip
            assert took <= 3 * least


@pytest.mark.parametrize("members", [3, 5, 7, 11])
@pytest.mark.parametrize("new", [False, True])
def test_far_members_hold_the_bits_of_halving_and_doubling(members, new):
    arrays = [draw(rank, LARGE) for rank in range(members)]
    wanted = simulate("halving_doubling", arrays)[0]
    assert wanted.tobytes() != reference(arrays).tobytes()
    np.testing.assert_allclose(wanted, np.sum(arrays, axis=0), atol=1e-4)
    with world("in_process", members) as comms:
        for comm in comms:
            comm.distance = Distance(0.1)

        def call(comm):
            own = arrays[comm.rank].copy()
            return comm.all_reduced(own) if new else comm.all_reduce(own)

        results = together(comms, call)
    assert {r.tobytes() for r in results} == {wanted.tobytes()}


@pytest.mark.parametrize("step", range(6))
def test_a_far_member_that_dies_leaves_the_others_their_operands(step):
    """In each of the rounds: it has not voted, and none has a result."""
    arrays = [draw(rank, LARGE) for rank in range(5)]
    before = [array.tobytes() for array in arrays]
    plan = FaultPlan([Fault("crash", step=step)])
    with world("tcp", 5, {3: plan}) as comms:
        for comm in comms:
            comm.distance = Distance(0.1)
        found = together(
            comms, lambda c: outcome(lambda: c.all_reduce(arrays[c.rank], timeout=20))
        )
    assert plan.fired == 1
    others = [rank for rank in range(5) if rank != 3]
    assert all(isinstance(found[rank], PeerLost) for rank in others)
    assert [arrays[rank].tobytes() for rank in others] == [before[r] for r in others]


def test_members_that_know_another_distance_are_an_error_and_change_nothing():
    with world("in_process", 3) as members:
        arrays = [draw(c.rank, LARGE) for c in members]
        before = [array.copy() for array in arrays]
        members[1].distance = Distance(0.1)
        errors = together(
            members, lambda c: outcome(lambda: c.all_reduce(arrays[c.rank]))
        )
        assert all(isinstance(error, CollectiveAborted) for error in errors)
    for array, was in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, was)


def test_algorithms_that_differ_are_an_error_and_change_nothing():
    with world("in_process", 2) as members:
        arrays = [draw(c.rank, LARGE) for c in members]
        before = [array.copy() for array in arrays]
        names = ["tree", "ring"]
        errors = together(
            members,
            lambda c: outcome(
                lambda: c.all_reduce(arrays[c.rank], algorithm=names[c.rank])
            ),
        )
        assert all(isinstance(error, CollectiveAborted) for error in errors)
        assert all((a == b).all() for a, b in zip(arrays, before, strict=True))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"algorithm": "halfing_doubling"}, "Did you mean"),
        ({"algorithm": "two_level"}, "two_level:4"),
        ({"algorithm": "eager"}, "leave algorithm= out"),
        ({"algorithm": "ring", "compression": "int8"}, "of its own"),
    ],
)
def test_wrong_use_is_refused(options, word):
    with world("in_process", 2) as members, pytest.raises(UsageError, match=word):
        members[0].all_reduce(np.zeros(LARGE, np.float32), **options)
