"""Collectives that cannot be: wrong calls, lost members, damage; inputs stay."""

import threading
from datetime import timedelta

import numpy as np
import pytest
from helpers.worlds.collective_arguments import LARGE, draw
from helpers.worlds.communicators import outcome, together, world

from pcp.errors import CollectiveAborted, PeerLost, Timeout, UsageError
from pcp.runtime.collectives.schedule import reference
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.transport.fault_injection import Fault, FaultPlan
from pcp.runtime.transport.frame import Kind


def test_a_misspelt_option_is_named() -> None:
    (alone,) = Communicator.in_process(1)
    array = np.ones(3, np.float32)
    with alone, pytest.raises(UsageError, match=r"'timout'\. Did you mean 'timeout'"):
        alone.all_reduce(array, timout=1.0)  # pyright: ignore[reportCallIssue]
    (alone,) = Communicator.in_process(1)
    with alone, pytest.raises(UsageError, match="all_gather: no option 'tagg'"):
        alone.all_gather_async(array, tagg="a")  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.all_reduce([1.0]), "numpy array"),
        (lambda c: c.all_reduce(np.ones((4, 4))[:, 1]), "C-contiguous"),
        (lambda c: c.all_reduce(np.ones(4), "average"), "unknown reduction"),
        (lambda c: c.all_reduce(np.ones(4), ["sum"]), r"a text, not \['sum'\]"),
        (lambda c: c.all_reduced(np.ones(1 << 18), np.add), "a reduction .* a text"),
        (lambda c: c.reduce(np.ones(4), None), "a reduction .* a text, not None"),
        (lambda c: c.all_reduce(np.ones(4), algorithm=["ring"]), "an algorithm is"),
        (lambda c: c.all_reduce(np.ones(4), compression=["int8"]), "a compression is"),
        (lambda c: c.all_reduce(np.ones(4, int), "mean"), "mean of int64"),
        (lambda c: c.all_reduce(np.ones(4, complex), "max"), "no order"),
        (lambda c: c.all_reduce(np.array(["a"])), "cannot be reduced"),
        (lambda c: c.all_reduce(np.frombuffer(b"abcd", np.uint8)), "read-only"),
        (lambda c: c.all_to_all(np.ones(4)), "equal parts"),
        (lambda c: c.permute(np.ones(4), [(0, 1), (2, 1)]), "twice"),
        (lambda c: c.permute(np.ones(4), [(0, 7)]), "beyond"),
        (lambda c: c.send(np.ones(4), c.rank), "cannot send"),
        (lambda c: c.recv(np.ones(4), 9), "cannot receive"),
        (lambda c: c.broadcast(np.ones(4), 5), "broadcast from rank 5"),
        (lambda c: c.reduce_scatter(np.array(1.0)), "first dimension"),
        (lambda c: c.reduce_scatter(np.ones(4), sizes=[1, 1, 1]), "do not split"),
        (lambda c: c.all_reduce(np.ma.ones(4)), "masks"),
        (lambda c: c.all_reduce(np.ones(4), tag=5), "is a text, not 5"),
        (lambda c: c.all_reduce(np.ones(4), timeout="5"), "seconds, not '5'"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_sent(three, call, message):
    passed = []
    while len(passed) < 5:  # heartbeats pass meanwhile, on a slow machine several
        sent = three[0].bytes_sent
        with pytest.raises(UsageError, match=message):
            call(three[0])
        passed.append(three[0].bytes_sent - sent)
        if passed[-1] < 200:
            return
    pytest.fail(f"more than heartbeats has passed each time: {passed}")


def test_a_closed_communicator_says_so():
    (alone,) = Communicator.in_process(1, timeout=timedelta(seconds=3))
    assert alone.timeout == 3
    with pytest.raises(UsageError, match="would never be over"):
        alone.barrier(timeout=float("nan"))
    with alone as comm:
        assert comm.all_reduce(np.ones(3)).tolist() == [1, 1, 1]
    for call in (alone.barrier, lambda: alone.all_reduce(np.ones(3))):
        with pytest.raises(CollectiveAborted, match="closed"):
            call()


def test_a_delayed_operation_does_not_hold_others_back(carrier):
    formation = 0 if carrier == "in_process" else 1  # the barrier at the end of `form`
    plan = FaultPlan([Fault("drop", kind=Kind.OPEN, skip=formation)])
    with world(carrier, 2, {1: plan}) as members:

        def run(c):
            stuck = c.all_reduce_async(np.ones(LARGE), tag="a", timeout=1.0)
            fine = c.all_reduce_async(np.ones(LARGE), tag="b").result(30)
            return fine, outcome(stuck.result)

        results = together(members, run)
        assert plan.fired == 1
        for fine, stuck in results:
            assert (fine == 2).all()
            assert isinstance(stuck, Timeout | CollectiveAborted)
        again = together(members, lambda c: c.all_reduce(np.ones(LARGE)))
        assert all((a == 2).all() for a in again)


@pytest.mark.parametrize(
    ("mine", "theirs", "word"),
    [
        (np.ones(4), np.ones(5), "shape"),
        (np.ones(50_000), np.ones(50_001), "shape"),
        (np.ones(4), np.ones(4, np.float32), "dtype"),
    ],
)
def test_disagreement_is_an_error_on_all_members(three, mine, theirs, word):
    results = together(
        three,
        lambda c: outcome(
            lambda: c.all_reduce((theirs if c.rank == 1 else mine).copy(), timeout=5)
        ),
    )
    assert all(isinstance(r, CollectiveAborted) for r in results)
    assert any(word in str(r) for r in results)
    assert together(three, lambda c: c.all_reduce(np.ones(2)).tolist()) == [[3, 3]] * 3


def test_another_op_or_call_is_a_disagreement(three):
    results = together(
        three,
        lambda c: outcome(lambda: c.all_reduce(np.ones(3), "max" if c.rank else "sum")),
    )
    assert all(isinstance(r, CollectiveAborted) for r in results)
    results = together(
        three,
        lambda c: outcome(c.barrier if c.rank else lambda: c.all_gather(np.ones(3))),
    )
    assert all(isinstance(r, CollectiveAborted) for r in results)


def test_a_member_that_never_comes_is_named(three):
    results = together(
        three,
        lambda c: (
            outcome(lambda: c.all_reduce(np.ones(3), tag="absent", timeout=0.2))
            if c.rank != 1
            else None
        ),
    )
    assert {type(results[0]), type(results[2])} <= {Timeout, CollectiveAborted}
    assert "rank 1 never joined" in str(results[0])


@pytest.mark.parametrize("size", [4, LARGE])
def test_inputs_are_untouched_when_an_operation_is_given_up(carrier, size):
    plan = FaultPlan([Fault("drop", kind=Kind.DONE, times=99)])
    with world(carrier, 3, {2: plan}) as members:
        arrays = [draw(r, size) for r in range(3)]
        results = together(
            members, lambda c: outcome(lambda: c.all_reduce(arrays[c.rank], timeout=1))
        )
        assert plan.fired
        assert all(isinstance(r, Timeout | CollectiveAborted) for r in results[:2])
        for rank in range(2):
            np.testing.assert_array_equal(arrays[rank], draw(rank, size))


def test_abort_reaches_every_member_and_lasts(carrier):
    with world(carrier, 3) as members:

        def run(c):
            if c.rank == 1:
                threading.Timer(0.1, c.abort, ["the plan changed"]).start()
            array = draw(c.rank, LARGE)
            fault = (
                outcome(lambda: c.all_reduce(array, timeout=20))
                if c.rank != 1
                else None
            )
            return fault, (array == draw(c.rank, LARGE)).all()

        results = together(members, run)
        for rank in (0, 2):
            fault, unchanged = results[rank]
            assert isinstance(fault, CollectiveAborted)
            assert "the plan changed" in str(fault)
            assert unchanged
        for member in members:
            with pytest.raises(CollectiveAborted, match="the plan changed"):
                member.all_reduce(np.ones(3))


@pytest.mark.parametrize("size", [4, LARGE])
def test_a_crash_is_peer_lost_for_all_even_without_direct_traffic(carrier, size):
    with world(carrier, 4) as members:
        arrays = [draw(r, size) for r in range(4)]

        def run(c):
            if c.rank == 2:
                threading.Timer(0.1, c._crash).start()
                return None
            return outcome(lambda: c.all_reduce(arrays[c.rank], timeout=20))

        results = together(members, run)
        for rank in (0, 1, 3):
            fault = results[rank]
            assert isinstance(fault, PeerLost)
            assert fault.peer == 2
            np.testing.assert_array_equal(arrays[rank], draw(rank, size))
            with pytest.raises(PeerLost):
                members[rank].barrier()


def test_leaving_on_purpose_spares_what_is_complete(carrier):
    """A fast member may close right after its result; the others still get it."""
    for _ in range(5):
        with world(carrier, 3) as members:

            def run(c):
                value = c.all_reduce(draw(c.rank, LARGE))
                c.close()
                return value.tobytes()

            wanted = reference([draw(r, LARGE) for r in range(3)]).tobytes()
            assert together(members, run) == [wanted] * 3


def test_damage_on_the_way_is_noticed(carrier):
    plan = FaultPlan([Fault("corrupt", kind=Kind.DATA)])
    with world(carrier, 3, {1: plan}) as members:
        arrays = [draw(r, LARGE) for r in range(3)]
        results = together(
            members, lambda c: outcome(lambda: c.all_reduce(arrays[c.rank], timeout=5))
        )
        assert plan.fired == 1
        assert all(isinstance(r, PeerLost) for r in results)
        assert any("damaged" in str(r) for r in results)
        for rank in range(3):
            np.testing.assert_array_equal(arrays[rank], draw(rank, LARGE))


@pytest.mark.parametrize(
    "trials", [25, pytest.param(200, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_crashes_at_random_moments_leave_survivors_agreeing(carrier, trials):
    """All survivors commit the same sum, or none does and inputs are whole."""
    rng = np.random.default_rng(trials)
    whole = reference([draw(r, LARGE) for r in range(3)]).tobytes()
    committed = 0
    for _ in range(trials):
        with world(carrier, 3) as members:
            arrays = [draw(r, LARGE) for r in range(3)]
            delay = float(rng.uniform(0, 0.006))

            def run(c, arrays=arrays, delay=delay):
                if c.rank == 2:
                    threading.Timer(delay, c._crash).start()
                return outcome(lambda: c.all_reduce(arrays[c.rank], timeout=10))

            results = together(members, run)[:2]
        if any(isinstance(r, Exception) for r in results):
            assert all(isinstance(r, PeerLost) for r in results)
            for rank in range(2):
                np.testing.assert_array_equal(arrays[rank], draw(rank, LARGE))
        else:
            committed += 1
            for result in results:
                assert isinstance(result, np.ndarray)
                assert result.tobytes() == whole
    assert committed < trials, "no crash came in time to matter"
