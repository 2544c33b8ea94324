"""What `barrier` and `close` come after: everything that was called before them.

A vote that is late (`late`) makes one member commit long after the others: before its
operation is over there, it is past a barrier that does not wait, and leaves.
"""

import json
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from helpers.repository import readme_example
from helpers.servers.processes import free_port
from helpers.worlds.communicators import (
    CARRIERS,
    endpoints,
    eventually,
    form,
    member,
    outcome,
    together,
    world,
)
from helpers.worlds.elastic_groups import elastic
from helpers.worlds.member_process import contribution

from pcp.errors import CollectiveAborted, PeerLost, RuntimeFault, Timeout, UsageError
from pcp.runtime.collectives.schedule import reference
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.transport.fault_injection import Fault, FaultPlan
from pcp.runtime.transport.frame import Kind

SIZES = (7, 60_000)


def late() -> dict[int, FaultPlan]:
    """Rank 2's first vote is a quarter of a second under way."""
    return {2: FaultPlan([Fault("delay", kind=Kind.DONE, peer=1, seconds=0.25)])}


def start(comm: Communicator, size: int) -> np.ndarray:
    return np.full(size, comm.rank + 1, np.float32)


# The README's block.


@pytest.mark.slow  # tests/test_readme.py runs it, with nothing else to do
def test_the_tours_program_ends_with_equal_arrays() -> None:
    with readme_example.busy(2):
        assert readme_example.arrays() == ["array 6.0"] * readme_example.MEMBERS


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_200_groups_of_it_on_a_busy_machine() -> None:
    with readme_example.busy(4):
        found = [readme_example.arrays() for _ in range(200)]
    equal = sum(text == "array 6.0" for group in found for text in group)
    assert equal == 200 * readme_example.MEMBERS, found


# A barrier.


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_behind_a_barrier_what_was_called_before_has_happened(carrier, size) -> None:
    with world(carrier, 3, late()) as comms:

        def work(comm: Communicator) -> tuple[bool, np.ndarray]:
            array = start(comm, size)
            future = comm.all_reduce_async(array, tag="w")
            comm.barrier()
            return future.done(), array.copy()

        for done, array in together(comms, work):
            assert done
            assert (array == 6).all()


def test_it_counts_on_all_members() -> None:
    """Who has nothing under way itself waits for who has."""
    with world("tcp", 3, late()) as comms:
        arrays = [start(comm, 9) for comm in comms]

        def work(comm: Communicator) -> list[float]:
            comm.all_reduce(arrays[comm.rank])
            comm.barrier()
            return [float(array[0]) for array in arrays]

        assert together(comms, work) == [[6.0] * 3] * 3


def test_callbacks_of_what_was_called_before_have_run() -> None:
    with world("tcp", 2) as comms:

        def work(comm: Communicator) -> list[str]:
            said: list[str] = []

            def slowly(_: object) -> None:
                time.sleep(0.05)
                said.append("summed")

            comm.all_reduce_async(start(comm, 3)).add_done_callback(slowly)
            comm.barrier()
            return list(said)

        assert together(comms, work) == [["summed"]] * 2


def test_sends_and_receives_count_unless_it_is_said() -> None:
    with world("tcp", 2) as comms:
        out = np.zeros(3)

        def first(pairs: bool) -> Exception | None:
            received = comms[0].recv_async(out, 1, timeout=20)
            fault = outcome(lambda: comms[0].barrier(pairs=pairs, timeout=0.5))
            comms[1].send(np.ones(3), 0)
            received.result(30)
            return fault

        other = threading.Thread(target=lambda: outcome(comms[1].barrier), daemon=True)
        other.start()
        fault = first(pairs=True)
        assert isinstance(fault, Timeout)
        assert "waits for what was called before it: send/recv 'p2p/1/0/0'" in str(
            fault
        )
        assert "rank 1 never joined it" in str(fault)
        other.join(30)
        second = threading.Thread(target=comms[1].barrier, daemon=True)
        second.start()
        assert first(pairs=False) is None
        second.join(30)


def test_barriers_of_two_tags_may_be_called_in_another_order() -> None:
    with world("tcp", 3) as comms:

        def work(comm: Communicator) -> None:
            tags = ["x", "y"] if comm.rank else ["y", "x"]
            waits = [comm.barrier_async(tag=tag, timeout=10) for tag in tags]
            for wait in waits:
                wait.result(30)

        together(comms, work)


def test_what_fails_before_a_barrier_does_not_hold_it() -> None:
    with world("tcp", 2) as comms:

        def work(comm: Communicator) -> BaseException | None:
            future = comm.all_reduce_async(start(comm, 3 + comm.rank))
            comm.barrier(timeout=10)
            return future.exception(0)

        for fault in together(comms, work):
            assert isinstance(fault, CollectiveAborted)


# Leaving.


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("carrier", CARRIERS)
def test_who_leaves_takes_what_it_called_to_its_end(carrier, size) -> None:
    with world(carrier, 3, late()) as comms:

        def work(comm: Communicator) -> list[np.ndarray]:
            arrays = [start(comm, size) for _ in range(3)]
            futures = [comm.all_reduce_async(a, tag=f"{a.size}") for a in arrays]
            comm.close()
            for future, array in zip(futures, arrays, strict=True):
                assert future.result(0) is array
            return arrays

        for arrays in together(comms, work):
            assert all((array == 6).all() for array in arrays)


def test_what_callbacks_start_meanwhile_is_part_of_it() -> None:
    with world("tcp", 2) as comms:

        def work(comm: Communicator) -> float:
            array, second = start(comm, 3), []
            first = comm.all_reduce_async(array)
            first.add_done_callback(
                lambda _: second.append(comm.all_reduce_async(array))
            )
            comm.close()
            with pytest.raises(CollectiveAborted, match="closed its communicator"):
                comm.all_reduce_async(array)
            return float(second[0].result(0)[0])

        assert together(comms, work) == [6.0, 6.0]


def test_what_did_not_happen_is_named() -> None:
    with world("tcp", 2) as comms:
        future = comms[0].all_reduce_async(start(comms[0], 5), tag="lonely")
        with pytest.raises(Timeout, match=r"'lonely': rank 1 never joined") as told:
            comms[0].close(timeout=0.2)
        assert "left before it had happened" in str(told.value)
        assert isinstance(outcome(lambda: future.result(0)), CollectiveAborted)
        comms[0].close()  # once is enough


def test_what_fails_meanwhile_is_named() -> None:
    with world("tcp", 2) as comms:
        comms[0].all_reduce_async(start(comms[0], 5), tag="lonely")
        leaver = threading.Timer(0.1, lambda: comms[1].close())
        leaver.start()
        with pytest.raises(PeerLost, match=r"'lonely': rank 1 left the group"):
            comms[0].close()
        leaver.join()


def test_in_doubt_is_said_so() -> None:
    """It had voted: no member alone can know what becomes of it."""
    plan = FaultPlan([Fault("delay", kind=Kind.DONE, peer=0, seconds=3)])
    with world("tcp", 2, {1: plan}) as comms:
        futures = [comm.all_reduce_async(start(comm, 5)) for comm in comms]
        assert (futures[1].result(30) == 3).all()
        comms[0].close(timeout=0)
        with pytest.raises(CollectiveAborted, match="may have happened on the others"):
            futures[0].result(0)


def test_at_once_if_that_is_asked_for() -> None:
    with world("tcp", 2) as comms:
        future = comms[0].all_reduce_async(start(comms[0], 5))
        comms[0].close(timeout=0)
        assert isinstance(outcome(lambda: future.result(0)), CollectiveAborted)


def test_who_leaves_without_a_vote_is_not_taken_for_dead() -> None:
    """The dead have no say: then those who voted go on. Who lives gave it up."""
    late = Fault("delay", kind=Kind.OPEN, peer=0, skip=1, seconds=1)
    plan = FaultPlan([late])
    with world("tcp", 2, {1: plan}) as comms:
        arrays = [start(comm, 5) for comm in comms]
        futures = [c.all_reduce_async(a) for c, a in zip(comms, arrays, strict=True)]
        eventually(lambda: any(op.voted for op in comms[1]._group.under_way))
        comms[0].close(timeout=0)
        faults = [outcome(lambda f=future: f.result(30)) for future in futures]
        assert isinstance(faults[0], CollectiveAborted)
        assert isinstance(faults[1], PeerLost)
        assert (arrays[1] == 2).all()


def test_a_block_that_fails_is_left_at_once() -> None:
    with world("tcp", 2) as comms:

        def fails() -> None:
            with comms[0] as comm:
                comm.all_reduce_async(start(comm, 5))
                raise ValueError("ours")

        assert isinstance(outcome(fails), ValueError)
        lost = outcome(lambda: comms[1].all_reduce(start(comms[1], 5), timeout=10))
        assert isinstance(lost, PeerLost)


def test_a_block_that_ends_well_waits() -> None:
    with world("tcp", 3, late()) as comms:

        def work(comm: Communicator) -> np.ndarray:
            with comm:
                array = start(comm, 5)
                comm.all_reduce_async(array)
            return array

        assert all((array == 6).all() for array in together(comms, work))


def test_of_a_broken_group_it_is_no_news() -> None:
    with world("tcp", 2) as comms:
        future = comms[0].all_reduce_async(start(comms[0], 5))
        comms[1]._crash()
        assert isinstance(outcome(lambda: future.result(30)), PeerLost)
        again = comms[0].all_reduce_async(start(comms[0], 5))
        comms[0].close()
        assert isinstance(outcome(lambda: again.result(0)), PeerLost)


def test_a_callback_cannot_wait_for_its_own_thread() -> None:
    with world("tcp", 2) as comms:
        told: list[object] = []

        def close(_: object) -> None:
            told.append(outcome(comms[0].close))

        future = comms[0].barrier_async()
        future.add_done_callback(close)
        comms[1].barrier()
        eventually(lambda: bool(told))
        assert isinstance(told[0], UsageError)
        together(comms, lambda comm: comm.barrier(timeout=10))


def test_a_send_is_received_after_its_sender_has_left() -> None:
    with world("tcp", 2) as comms:
        comms[0].send(np.arange(5.0), 1)
        comms[0].close()
        eventually(lambda: bool(comms[1]._group._left))
        out = np.zeros(5)
        comms[1].recv(out, 0, timeout=10)
        assert out.tolist() == [0, 1, 2, 3, 4]


def test_who_leaves_is_there_until_a_slow_peer_has_heard_it() -> None:
    """Connections that are closed before that may take unread words with them."""
    with endpoints(2) as made:
        comms = form(made)
        asleep, awake = threading.Event(), threading.Event()
        comms[1]._group.loop.call(lambda: (asleep.set(), awake.wait(10)))
        assert asleep.wait(30)
        comms[0].send(np.arange(5.0), 1)
        links = comms[0]._group.all_links
        leaver = threading.Thread(
            target=lambda: (comms[0].close(), made[0].close()), daemon=True
        )
        leaver.start()
        leaver.join(0.5)
        assert leaver.is_alive(), "it had not read a word"
        awake.set()
        leaver.join(20)
        assert not leaver.is_alive()
        assert not any(link.alive for link in links)
        out = np.zeros(5)
        comms[1].recv(out, 0, timeout=10)
        assert out.tolist() == [0, 1, 2, 3, 4]
        comms[1].close()


def test_in_an_elastic_world() -> None:
    with elastic("a", "b", "c") as (_, comms):
        comms[2]._group._faults = late()[2]

        def work(comm: Communicator) -> np.ndarray:
            array = start(comm, 5)
            comm.all_reduce_async(array)
            comm.close()
            return array

        assert all((array == 6).all() for array in together(comms, work))


PROGRAM = """
import sys, time
import numpy as np
from pcp.runtime import Communicator
rank = int(sys.argv[1])
comm = Communicator.connect(sys.argv[2], rank=rank, world_size=2)
time.sleep(rank)
array = np.full(5, rank + 1, np.float32)
future = comm.all_reduce_async(array)
future.add_done_callback(lambda done: print("sum", done.result()[0], flush=True))
"""


def test_a_program_that_ends_without_a_word_leaves_likewise() -> None:
    where = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-c", PROGRAM]
    running = [
        subprocess.Popen(
            [*command, str(rank), where], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=60)[0].strip() for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    assert said == ["sum 3.0", "sum 3.0"]


# Deaths, and other calls.


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param({"kind": "OPEN", "skip": 3}, id="before it opens"),
        pytest.param({"kind": "DATA"}, id="inside"),
        pytest.param({"kind": "DONE"}, id="before any vote"),
        pytest.param({"kind": "DONE", "skip": 1}, id="between two votes"),
    ],
)
def test_a_member_is_killed_while_the_others_close(kill) -> None:
    """They agree; `close` says what did not happen, and its input is as it was."""
    with endpoints(2) as made, member(do="all_reduce", kill=kill) as dying:
        addresses = [*(endpoint.address for endpoint in made), dying.line()]
        dying.tell(json.dumps(addresses))
        comms = together(range(2), lambda rank: made[rank].form(1, addresses, rank, 20))

        def work(comm: Communicator) -> tuple[object, np.ndarray]:
            array = contribution(comm.rank)
            comm.all_reduce_async(array)
            return outcome(comm.close), array

        found = together(comms, work)
        assert dying.wait() == -signal.SIGKILL
    whole = reference([contribution(rank) for rank in range(3)], "sum")
    done = [np.array_equal(array, whole) for _, array in found]
    assert done[0] == done[1]
    for rank, (fault, array) in enumerate(found):
        assert done[rank] or np.array_equal(array, contribution(rank))
        assert isinstance(fault, RuntimeFault) != done[rank], fault


def test_state_is_compared_when_what_writes_it_is_over() -> None:
    """Else the source may hand out what it had before, and others are overwritten."""
    with world("tcp", 3, late()) as comms:

        def work(comm: Communicator) -> np.ndarray:
            state = start(comm, 9)
            future = comm.all_reduce_async(state[:])
            comm.param_sync({"w": state}, source=1, timeout=20)
            future.result(20)
            return state

        assert all((state == 6).all() for state in together(comms, work))


def test_state_that_something_else_uses_is_waited_for_in_vain() -> None:
    with world("tcp", 2) as comms:
        state = np.zeros(4)
        comms[0].recv_async(state, 1)
        with pytest.raises(Timeout, match="param_sync waits for send/recv"):
            comms[0].param_sync({"w": state}, timeout=0.2)
        comms[0].recv_async(np.zeros(4), 1, 5)
        comms[1].send(np.ones(4), 0)
        together(
            comms, lambda c: c.param_sync({"w": state if not c.rank else np.ones(4)})
        )
