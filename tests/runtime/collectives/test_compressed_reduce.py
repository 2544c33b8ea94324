"""Compressed reductions: sums, parity, feedback, and operations that fail."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers.sampled import sampled
from helpers.worlds.communicators import outcome, together, world

from pcp.errors import CollectiveAborted, RuntimeFault, Timeout, UsageError
from pcp.runtime import Communicator
from pcp.runtime.collectives.compressed_reduce import SEGMENT, CompressedReduce
from pcp.runtime.compression.codecs import Codec, codec
from pcp.runtime.compression.error_feedback import ErrorFeedback
from pcp.runtime.compression.power_sgd import PowerSGD, orthonormal, outer
from pcp.runtime.transport.fault_injection import Fault, FaultPlan

CODECS = ["fp16", "bf16", "fp8", "int8", "int8zp", "e3m0", "int2", "topk:0.05"]
CODECS.append("randomk:0.05")


class World:
    """All members in this process, each call made by all of them at once."""

    def __init__(self, size: int, **options) -> None:
        self.comms = Communicator.in_process(size, timeout=20, **options)
        self._pool = ThreadPoolExecutor(size)

    def each(self, what) -> list:
        return list(self._pool.map(what, range(len(self.comms))))

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_) -> None:
        for comm in self.comms:
            comm.close()
        self._pool.shutdown()


def inputs(size: int, count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(count).astype(np.float32) for _ in range(size)]


class Bits(Codec):
    """A codec of a caller's own, whose bytes are the memory of the values."""

    name = "bits"

    def wire_bytes(self, count: int) -> int:
        return 4 * count

    def encode(self, values: np.ndarray, seed: int = 0) -> np.ndarray:
        return values.view(np.uint8)

    def decode(self, wire: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
        return wire.view(np.float32)


def test_a_codec_may_give_the_memory_of_the_values() -> None:
    """A sum is still being sent when the next segment is added up."""
    xs = inputs(2, 12 * SEGMENT)
    with world("tcp", 2) as comms:
        outs = together(
            comms,
            lambda comm: comm.all_reduce(xs[comm.rank].copy(), compression=Bits()),
        )
    assert all(np.array_equal(out, xs[0] + xs[1]) for out in outs)


@pytest.mark.filterwarnings("error")
def test_feedback_of_what_is_not_finite_warns_of_nothing() -> None:
    """A warning that is an error would be one of the loop, which all calls share."""
    xs = [np.full(512, value, np.float32) for value in (np.inf, 3e38)]
    held = [ErrorFeedback(), ErrorFeedback()]
    with World(2) as world:
        for _ in range(2):
            outs = world.each(
                lambda r: world.comms[r].all_reduce(
                    xs[r].copy(), compression="fp16", feedback=held[r]
                )
            )
            assert all(np.isinf(out).all() for out in outs)
    assert not any(one.state()[""].any() for one in held)


@pytest.mark.parametrize("name", CODECS)
@sampled("size", [1, 2, 3, 4], 3)
def test_feedback_conserves_and_members_agree(name: str, size: int) -> None:
    """sum of what came out + residuals = sum of what went in (see `feedback`)."""
    for count in (1, 7, 2 * SEGMENT + 77):
        memories = [ErrorFeedback() for _ in range(size)]
        given = np.zeros(count)
        gotten = np.zeros(count)
        with World(size) as world:
            for step in range(3):
                xs = inputs(size, count, step)
                given += np.sum(np.array(xs, float), axis=0)
                outs = world.each(
                    lambda r, xs=xs, held=memories: world.comms[r].all_reduce(
                        xs[r], "mean", compression=name, feedback=held[r]
                    )
                )
                bits = {out.tobytes() for out in outs}
                assert len(bits) == 1
                gotten += size * outs[0].astype(float)
        held = sum(m.state()[""].astype(float) for m in memories)
        np.testing.assert_allclose(gotten + held, given, atol=1e-5)


@pytest.mark.parametrize("call", ["all_reduce", "all_reduced"])
def test_the_result_is_the_declared_arithmetic(call: str) -> None:
    """Against the module's formulas, written out with no messages."""
    size, count = 3, 3000
    coder = codec("int8")
    xs = inputs(size, count)
    ranges = [(0, 1000), (1000, 2000), (2000, 3000)]
    expected = np.empty(count, np.float32)
    for owner, (a, b) in enumerate(ranges):
        total = np.zeros(b - a, np.float32)
        for rank in range(size):
            part = xs[rank][a:b]
            if rank != owner:
                part = coder.decode(coder.encode(part), b - a)
            total += part
        expected[a:b] = coder.decode(coder.encode(total), b - a)
    with World(size) as world:
        outs = world.each(
            lambda r: getattr(world.comms[r], call)(xs[r], compression="int8")
        )
    assert all(np.array_equal(out, expected) for out in outs)
    in_place = [x is out for x, out in zip(xs, outs, strict=True)]
    assert in_place == [call == "all_reduce"] * size
    assert in_place[0] or all(map(np.array_equal, xs, inputs(size, count)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_arrays_are_added_in_float32(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    xs = [x.astype(kind) for x in inputs(2, 5000)]
    exact = sum(x.astype(np.float32) for x in xs)
    with World(2) as world:
        outs = world.each(
            lambda r: world.comms[r].all_reduce(xs[r], compression="int8")
        )
    assert outs[0].dtype == kind
    assert outs[0].tobytes() == outs[1].tobytes()
    np.testing.assert_allclose(outs[0].astype(np.float32), exact, atol=0.09)


def test_reduce_scatter_rounds_contributions_only() -> None:
    size = 3
    xs = [x.reshape(100, 70) for x in inputs(size, 7000)]
    exact = np.sum(xs, axis=0)
    with World(size) as world:
        outs = world.each(
            lambda r: world.comms[r].reduce_scatter(xs[r], compression="int8")
        )
    assert [len(out) for out in outs] == [34, 33, 33]
    np.testing.assert_allclose(np.concatenate(outs), exact, atol=0.05)


@pytest.mark.parametrize("name", ["int8", "e3m0", "topk:0.05"])
def test_bytes_on_the_wire(name: str) -> None:
    """As documented: 2 (N-1)/N of the encoded array, and little else."""
    size, count = 4, 4 * SEGMENT
    xs = inputs(size, count)
    with World(size) as world:
        before = world.comms[0].bytes_sent
        world.each(lambda r: world.comms[r].all_reduce(xs[r], compression=name))
        sent = world.comms[0].bytes_sent - before
    wire = 2 * (size - 1) * codec(name).wire_bytes(count // size)
    assert wire <= sent <= wire + 3000


def test_members_that_disagree_abort_together() -> None:
    xs = inputs(2, 100_000)
    kinds = ["int8", "e3m0"]

    def call(rank: int) -> str:
        with pytest.raises(CollectiveAborted, match="compression") as caught:
            world.comms[rank].all_reduce(xs[rank], compression=kinds[rank])
        return str(caught.value)

    with World(2) as world:
        messages = world.each(call)
    assert any("int8" in text and "e3m0" in text for text in messages)


@pytest.mark.parametrize(
    ("after", "count"),
    [
        (1, 3000),
        (2, 3000),
        (3, 3000),
        (1, 6 * SEGMENT),
        (3, 6 * SEGMENT),
        (6, 6 * SEGMENT),
    ],
)
def test_an_abort_changes_neither_input_nor_feedback(after: int, count: int) -> None:
    """One member dies after some frames of the second operation."""
    size = 3
    xs = inputs(size, count)
    memories = [ErrorFeedback() for _ in range(size)]

    def reduce(rank: int, into: np.ndarray) -> None:
        world.comms[rank].all_reduce(
            into, compression="int2", feedback=memories[rank], timeout=10
        )

    plan = FaultPlan()
    with World(size, faults={2: plan}) as world:
        world.each(lambda r: reduce(r, xs[r].copy()))
        kept = [m.state()[""] for m in memories]
        plan.faults = [Fault("crash", skip=after)]
        later = [x.copy() for x in xs]

        def fail(rank: int) -> None:
            with pytest.raises(RuntimeFault):
                reduce(rank, later[rank])

        world.each(fail)
        assert plan.fired == 1
    for rank in (0, 1):
        assert np.array_equal(later[rank], xs[rank])
        assert np.array_equal(memories[rank].state()[""], kept[rank])


@pytest.mark.parametrize("step", ["contribution", "sum"])
def test_bytes_that_stand_for_nothing_are_an_error_for_all(monkeypatch, step) -> None:
    """At once, not at the deadline; inputs stay as they were."""
    count = SEGMENT + 300
    send = CompressedReduce.send_data

    def senseless(self, peer, which, offset, payload, taken=None) -> None:
        if which == ["contribution", "sum"].index(step):
            payload = np.zeros(len(payload), np.uint8).data
        send(self, peer, which, offset, payload, taken)

    with World(2) as world, monkeypatch.context() as patched:
        xs = inputs(2, count)
        patched.setattr(CompressedReduce, "send_data", senseless)
        faults = world.each(
            lambda r: outcome(
                lambda: world.comms[r].all_reduce(xs[r], compression="topk:0.1")
            )
        )
        assert all(isinstance(fault, RuntimeFault) for fault in faults), faults
        assert not any(isinstance(fault, Timeout) for fault in faults), faults
        assert any("not ascending" in str(fault) for fault in faults)
        assert all((x == y).all() for x, y in zip(xs, inputs(2, count), strict=True))


def test_others_get_their_turn_between_two_segments(monkeypatch) -> None:
    order = []
    add = CompressedReduce._add_segment

    def noting(self, index: int) -> None:
        if self._rank == 0:
            order.append("add")
            self.group.later(0.0, lambda: order.append("turn"))
        add(self, index)

    monkeypatch.setattr(CompressedReduce, "_add_segment", noting)
    with World(2) as world:
        xs = inputs(2, 12 * SEGMENT)
        world.each(lambda r: world.comms[r].all_reduce(xs[r], compression="int8"))
        world.each(lambda r: world.comms[r].barrier())
    assert order == ["add", "turn"] * 6


def test_what_cannot_be_compressed_says_so() -> None:
    comm = Communicator.in_process(1)[0]
    with comm, pytest.raises(UsageError, match="float64"):
        comm.all_reduce(np.zeros(3), compression="int8")
    with comm, pytest.raises(UsageError, match="max"):
        comm.all_reduce(np.zeros(3, np.float32), "max", compression="int8")
    with comm, pytest.raises(UsageError, match="without compression"):
        comm.all_reduce(np.zeros(3, np.float32), feedback=ErrorFeedback())


def test_one_residual_serves_one_tensor() -> None:
    feedback = ErrorFeedback()
    feedback.take("w", 3)
    with pytest.raises(UsageError, match="under way"):
        feedback.take("w", 3)
    feedback.settle("w", np.ones(3, np.float32))
    with pytest.raises(UsageError, match="3 residuals"):
        feedback.take("w", 4)
    other = ErrorFeedback()
    other.restore(feedback.state())
    assert np.array_equal(other.take("w", 3), np.ones(3))


@pytest.mark.slow  # a descent of many steps
def test_feedback_finds_the_minimum_that_top_k_alone_misses() -> None:
    """Gradient descent on |x - mean of targets|^2 / 2 by two members."""
    targets = inputs(2, 600, 9)
    goal = np.mean(targets, axis=0)

    def descend(memories: list) -> float:
        points = [np.zeros(600, np.float32) for _ in range(2)]
        with World(2) as world:
            for _ in range(300):
                grads = [points[r] - targets[r] for r in range(2)]
                outs = world.each(
                    lambda r, grads=grads: world.comms[r].all_reduce(
                        grads[r],
                        "mean",
                        compression="topk:0.1",
                        feedback=memories[r],
                    )
                )
                for point, out in zip(points, outs, strict=True):
                    point -= 0.05 * out
        assert np.array_equal(points[0], points[1])
        return float(np.abs(points[0] - goal).mean())

    assert descend([ErrorFeedback(), ErrorFeedback()]) < 0.5 * descend([None, None])


def test_power_sgd_recovers_a_matrix_of_its_rank() -> None:
    rng = np.random.default_rng(4)
    full = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 25))
    parts = [(share * full).astype(np.float32) for share in (0.5, 1.5)]
    with World(2) as world:
        states = [PowerSGD(3), PowerSGD(3)]

        def reduced(r: int) -> np.ndarray:
            return states[r].all_reduce(world.comms[r], parts[r].copy(), tag="w")

        *_, outs = (world.each(reduced) for _ in range(3))
    assert outs[0].tobytes() == outs[1].tobytes()
    np.testing.assert_allclose(outs[0], full, atol=1e-4)
    assert states[0].wire_elements(40, 25) == 3 * 65


def test_power_sgd_conserves_by_feedback() -> None:
    rng = np.random.default_rng(5)
    given = np.zeros((20, 30))
    gotten = np.zeros((20, 30))
    with World(3) as world:
        states = [PowerSGD(2) for _ in range(3)]
        for _ in range(5):
            xs = [rng.standard_normal((20, 30)).astype("f") for _ in range(3)]
            given += np.mean(np.array(xs, float), axis=0)
            outs = world.each(
                lambda r, xs=xs: states[r].all_reduce(world.comms[r], xs[r], tag="w")
            )
            gotten += outs[0]
    held = np.mean([s.state()["residuals"]["w"] for s in states], axis=0)
    np.testing.assert_allclose(gotten + held, given, atol=1e-4)


def test_orthonormal_columns_and_outer() -> None:
    p = np.random.default_rng(6).standard_normal((31, 4)).astype("f")
    p[:, 2] = 2 * p[:, 0]
    basis = orthonormal(p)
    gram = basis.T @ basis
    np.testing.assert_allclose(gram, np.diag([1, 1, 0, 1]), atol=1e-5)
    np.testing.assert_allclose(outer(p, p[:9]), p @ p[:9].T, rtol=1e-4, atol=1e-5)


def test_power_sgd_refuses_what_is_no_matrix() -> None:
    (comm,) = Communicator.in_process(1)
    with comm, pytest.raises(UsageError, match="matrices"):
        PowerSGD(2).all_reduce(comm, np.zeros(3, np.float32), tag="w")
