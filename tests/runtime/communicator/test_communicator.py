"""Every collective, over both carriers, against numpy: the conformance suite."""

import threading
from concurrent.futures import Future

import ml_dtypes
import numpy as np
import pytest
from helpers.present import present
from helpers.worlds.collective_arguments import LARGE, draw
from helpers.worlds.communicators import outcome, together, world

from pcp.errors import UsageError
from pcp.runtime.collectives.schedule import reference
from pcp.runtime.communicator.communicator import Communicator
from pcp.wire import EAGER_BYTES

DTYPES = [
    "float16",
    ml_dtypes.bfloat16,
    "float32",
    "float64",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "complex64",
]


def _reduced(comms, given, op="sum"):
    """What each member has of several arrays, reduced one after another."""
    rows = together(
        comms,
        lambda c: [c.all_reduce(arrays[c.rank].copy(), op) for arrays in given],
    )
    return list(zip(*rows, strict=True))


# Sizes go through one test: what takes its time are threads and cases, not sums.
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_all_reduce_sum_is_the_declared_reduction_to_the_bit(comms, dtype):
    sizes = (0, 1, 5, LARGE)
    given = [[draw(c.rank, size, dtype) for c in comms] for size in sizes]
    for size, arrays, results in zip(sizes, given, _reduced(comms, given), strict=True):
        wanted = {reference(arrays, "sum").tobytes()}
        assert {r.tobytes() for r in results} == wanted, f"of {size} elements"


@pytest.mark.parametrize("op", ["mean", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_all_reduce_ops(comms, op, dtype):
    given = [[draw(c.rank, size, dtype) for c in comms] for size in (17, LARGE)]
    tolerance = 1e-2 if dtype == "float16" else 1e-5
    for arrays, results in zip(given, _reduced(comms, given, op), strict=True):
        assert {r.tobytes() for r in results} == {reference(arrays, op).tobytes()}
        exact = getattr(np.stack(arrays).astype(np.float64), op)(axis=0)
        np.testing.assert_allclose(
            results[0].astype(np.float64), exact, rtol=tolerance, atol=tolerance
        )


def test_the_reference_is_a_plain_sum():
    """The oracle itself, against exact integers and against float64."""
    ints = [draw(r, LARGE, "int64") for r in range(4)]
    assert (reference(ints) == np.sum(ints, axis=0)).all()
    floats = [draw(r, LARGE) for r in range(4)]
    exact = np.sum(np.stack(floats).astype(np.float64), axis=0)
    np.testing.assert_allclose(reference(floats), exact, atol=1e-5)


@pytest.mark.parametrize("ring", [False, True])
def test_narrow_floats_add_up_in_float32(ring):
    """1024 + 0.5 + 0.5 is 1025 in float32; float16 would drop each half."""
    parts = [np.full(4, v, np.float16) for v in (1024, 0.5, 0.5)]
    assert (reference(parts, "sum", ring=ring) == 1025).all()


@pytest.mark.parametrize("size", [300, LARGE])
def test_all_reduce_narrow_floats_over_the_wire(three, size):
    parts = [np.full(size, v, np.float16) for v in (1024, 0.5, 0.5)]
    results = together(three, lambda c: c.all_reduce(parts[c.rank]))
    assert all((r == 1025).all() for r in results)


@pytest.mark.parametrize("shape", [(7, 3), (4001, 11), (2, 20_000), (0, 5)])
def test_reduce_scatter_splits_the_first_dimension(comms, shape):
    arrays = [draw(c.rank, int(np.prod(shape)), "int64").reshape(shape) for c in comms]
    results = together(comms, lambda c: c.reduce_scatter(arrays[c.rank]))
    wanted = np.array_split(np.sum(arrays, axis=0), len(comms))
    for result, want in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(result, want)


def test_a_small_reduce_scatter_sends_each_member_its_rows_alone(three):
    arrays = [np.full((3, 512), c.rank + 1.0) for c in three]
    before = [c.bytes_sent for c in three]
    results = together(three, lambda c: c.reduce_scatter(arrays[c.rank]))
    for comm, result, sent in zip(three, results, before, strict=True):
        assert result.tolist() == [[6.0] * 512]
        assert comm.bytes_sent - sent < 2 * arrays[0][:1].nbytes + 2048  # headers


def test_reduce_scatter_with_sizes(three):
    arrays = [draw(r, 12_000, "int64").reshape(-1, 2) for r in range(3)]
    sizes = [1000, 0, 5000]
    results = together(three, lambda c: c.reduce_scatter(arrays[c.rank], sizes=sizes))
    whole = np.sum(arrays, axis=0)
    assert [len(r) for r in results] == sizes
    np.testing.assert_array_equal(np.concatenate(results), whole)


@pytest.mark.parametrize("rows", [1, 30_000])
def test_all_gather_takes_uneven_parts(comms, rows):
    parts = [draw(c.rank, rows * c.rank * 2).reshape(-1, 2) for c in comms]
    results = together(comms, lambda c: c.all_gather(parts[c.rank]))
    for result in results:
        np.testing.assert_array_equal(result, np.concatenate(parts))


def test_all_gather_of_scalars(comms):
    results = together(comms, lambda c: c.all_gather(np.array(c.rank)))
    assert all(r.tolist() == list(range(len(comms))) for r in results)


@pytest.mark.parametrize("size", [3, LARGE])
def test_broadcast_from_each_root(comms, size):
    for root in range(len(comms)):
        results = together(
            comms, lambda c, root=root: c.broadcast(draw(c.rank, size), root)
        )
        assert all((r == draw(root, size)).all() for r in results)


@pytest.mark.parametrize("width", [2, 20_000])
def test_all_to_all_is_a_transpose_of_blocks(comms, width):
    size = len(comms)
    arrays = [draw(c.rank, size * width).reshape(size, width) for c in comms]
    results = together(comms, lambda c: c.all_to_all(arrays[c.rank]))
    for rank, result in enumerate(results):
        np.testing.assert_array_equal(result, np.stack([a[rank] for a in arrays]))


@pytest.mark.parametrize("size", [3, LARGE])
def test_permute_moves_along_pairs_and_leaves_zeros(three, size):
    arrays = [draw(r, size) for r in range(3)]
    pairs = [(0, 2), (1, 1)]
    results = together(three, lambda c: c.permute(arrays[c.rank], pairs))
    np.testing.assert_array_equal(results[0], np.zeros(size, np.float32))
    np.testing.assert_array_equal(results[1], arrays[1])
    np.testing.assert_array_equal(results[2], arrays[0])


@pytest.mark.parametrize("size", [3, LARGE])
def test_send_and_recv_match_by_tag_in_any_order(three, size):
    def run(c):
        if c.rank == 0:
            a = c.send_async(draw(1, size), 2, tag=1)
            b = c.send_async(draw(2, size), 2, tag=2)
            return a.result(30), b.result(30)
        if c.rank == 2:
            second = c.recv(np.empty(size, np.float32), 0, tag=2)
            return c.recv(np.empty(size, np.float32), 0, tag=1), second
        return None

    got = present(together(three, run)[2])
    np.testing.assert_array_equal(got[0], draw(1, size))
    np.testing.assert_array_equal(got[1], draw(2, size))


def test_everybody_sending_first_does_not_deadlock(three):
    """Small sends are handed over at once, as in the usual ring exchange."""

    def run(c):
        c.send(np.array([c.rank]), (c.rank + 1) % 3)
        return int(c.recv(np.empty(1, np.int64), (c.rank - 1) % 3)[0])

    assert together(three, run) == [2, 0, 1]


def test_barrier_holds_everybody(three):
    passed = []
    late = threading.Event()

    def run(c):
        if c.rank == 1:
            assert not late.wait(0.15)
            assert not passed
        c.barrier()
        passed.append(c.rank)

    together(three, run)
    assert sorted(passed) == [0, 1, 2]


def test_many_operations_under_way_are_matched_by_tag(three):
    """Each member starts them in an order of its own."""
    names = [f"layer{i}" for i in range(12)]
    size = {name: 10 if i % 2 else LARGE for i, name in enumerate(names)}

    def run(c):
        order = np.random.default_rng(c.rank).permutation(names)
        started = {
            str(n): c.all_reduce_async(
                np.full(size[n], names.index(n) + c.rank, np.float32), tag=str(n)
            )
            for n in order
        }
        return {name: pending.result(20) for name, pending in started.items()}

    for results in together(three, run):
        for i, name in enumerate(names):
            assert (results[name] == 3 * i + 3).all()


def test_a_callback_starts_operations_and_waits_for_none(three):
    """Who waits there would stop the thread that has to end what is waited for."""
    listening = threading.Barrier(3)

    def run(c):
        told: Future = Future()

        def refused_then_started(_):
            refusal = outcome(c.barrier), outcome(c.barrier_async().exception)
            c.all_reduce_async(np.ones(3), tag="second").add_done_callback(
                lambda second: told.set_result((refusal, second.result()))
            )

        wanted = c.recv_async(np.empty(2), (c.rank - 1) % 3, tag="first")
        wanted.add_done_callback(refused_then_started)
        listening.wait(20)
        c.send(np.ones(2), (c.rank + 1) % 3, tag="first")
        return told.result(20)

    for refusals, second in together(three, run):
        for refusal in refusals:
            assert isinstance(refusal, UsageError)
            assert "a callback" in str(refusal)
        assert (second == 3).all()


def test_traffic_is_counted_and_is_what_a_ring_costs(carrier):
    with world(carrier, 4) as members:
        size = 1 << 18
        before = [c.bytes_sent for c in members]
        together(members, lambda c: c.all_reduce(np.ones(size, np.float32)))
        for member, start in zip(members, before, strict=True):
            payload = 2 * 3 / 4 * size * 4
            assert payload <= member.bytes_sent - start < 1.05 * payload
            assert member.bytes_received > payload


def test_eager_and_ring_meet_at_the_limit(three):
    for extra in (-4, 0, 4):
        size = (EAGER_BYTES + extra) // 4
        arrays = [draw(r, size) for r in range(3)]
        results = together(
            three, lambda c, arrays=arrays: c.all_reduce(arrays[c.rank].copy())
        )
        assert {r.tobytes() for r in results} == {reference(arrays).tobytes()}


@pytest.mark.parametrize(
    "size", [40, pytest.param(256, marks=pytest.mark.slow)]
)  # 256: 65,280 links
def test_a_large_world_in_one_process(size):
    members = Communicator.in_process(size)
    try:
        assert [m.rank for m in members] == list(range(size))
        if size <= 40:
            pending = [m.all_reduced_async(np.full(9, m.rank)) for m in members]
            assert all(p.result(60)[0] == sum(range(size)) for p in pending)
    finally:
        for member in members:
            member.close()
