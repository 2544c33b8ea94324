"""SIGKILL and SIGSTOP to a member in its own process, phase by phase.

Ranks 0 and 1 are threads of this process, rank 2 is a child that kills itself
when it is about to send a chosen frame.
"""

import signal
import threading
import time
from contextlib import nullcontext

import numpy as np
import pytest
from helpers.simulation.along_trees import along_trees
from helpers.worlds.communicators import (
    endpoints,
    eventually,
    form,
    form_with,
    member,
    outcome,
    together,
    world,
)
from helpers.worlds.member_process import SIZE, contribution

from pcp.errors import CollectiveAborted, PeerLost, ProtocolError, Timeout
from pcp.runtime.collectives.agreement import SUBTREE
from pcp.runtime.collectives.schedule import reference
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.rendezvous import Rendezvous
from pcp.runtime.group.state_transfer import fetch_snapshot
from pcp.runtime.transport.fault_injection import Fault, FaultPlan
from pcp.runtime.transport.frame import Kind


def reduce_one(comm):
    array = contribution(comm.rank)
    fault = outcome(lambda: comm.all_reduce(array, timeout=20))
    return fault, np.array_equal(array, contribution(comm.rank))


def voted(group):
    return any(o.voted for o in group._table.operations.values())


def reduce_several(comm):
    arrays = [contribution(comm.rank) for _ in range(4)]
    pending = [comm.all_reduce_async(array, timeout=20) for array in arrays]
    faults = [outcome(p.result) for p in pending]
    lost = [(f, a) for f, a in zip(faults, arrays, strict=True) if f is not a]
    assert lost, "the member died before the last of them was complete"
    unchanged = all(np.array_equal(a, contribution(comm.rank)) for _, a in lost)
    return lost[-1][0], unchanged


def sync_state(comm):
    state = {"w": contribution(comm.rank)}
    fault = outcome(
        lambda: comm.param_sync(state, revision=1, source="elected", timeout=20)
    )
    return fault, np.array_equal(state["w"], contribution(comm.rank))


PHASES = {
    "opening": ("all_reduce", {"kind": "OPEN", "skip": 2}, reduce_one),
    "between two announcements": (
        "all_reduce",
        {"kind": "OPEN", "skip": 3},
        reduce_one,
    ),
    "reduce-scatter": ("all_reduce", {"kind": "DATA", "step": 1}, reduce_one),
    "inside a step": ("all_reduce", {"kind": "DATA", "skip": 1}, reduce_one),
    "all-gather": ("all_reduce", {"kind": "DATA", "step": 2}, reduce_one),
    "last step": ("all_reduce", {"kind": "DATA", "step": 3}, reduce_one),
    "several under way": ("several", {"kind": "DATA", "skip": 20}, reduce_several),
    "param_sync": ("param_sync", {"kind": "DATA", "skip": 1}, sync_state),
}


@pytest.mark.parametrize("phase", PHASES)
def test_survivors_get_peer_lost_keep_their_inputs_and_carry_on(phase):
    do, kill, ours = PHASES[phase]
    with member(do=do, kill=kill) as child, endpoints(2) as made:
        comms = form_with(child, made)
        assert child.line() == "formed"
        results = together(comms, ours)
        assert child.wait() == -signal.SIGKILL
        for fault, unchanged in results:
            assert isinstance(fault, PeerLost), fault
            assert fault.peer == 2
            assert unchanged
        survivors = form(made, epoch=2)
        sums = together(survivors, lambda c: c.all_reduce(contribution(c.rank)))
        wanted = reference([contribution(0), contribution(1)]).tobytes()
        assert [s.tobytes() for s in sums] == [wanted] * 2


@pytest.mark.parametrize(
    "kill",
    [
        {"kind": "OPEN", "skip": 1},
        {"kind": "DATA", "step": 0},
        {"kind": "DATA", "step": 2, "skip": 1},
    ],
    ids=["opening", "reduce-scatter", "all-gather"],
)
def test_a_death_at_each_step_along_a_tree(kill) -> None:
    with (
        along_trees(),
        member(do="all_reduce", kill=kill, trees=True) as child,
        endpoints(2) as made,
    ):
        comms = form_with(child, made)
        assert child.line() == "formed"
        results = together(comms, reduce_one)
        assert child.wait() == -signal.SIGKILL
        for fault, unchanged in results:
            assert isinstance(fault, PeerLost), fault
            assert fault.peer == 2
            assert unchanged


@pytest.mark.parametrize(
    ("kill", "agreed"),
    [
        ({"kind": "DONE", "skip": 1}, nullcontext),
        # The one vote along the tree, behind that of the formation.
        ({"kind": "DONE", "step": SUBTREE, "skip": 1}, along_trees),
    ],
    ids=["between two votes", "before the vote along a tree"],
)
def test_death_with_a_vote_unsent_is_a_success_for_all(kill, agreed):
    """All members have the result; only the news have not reached all of them.

    The member dies when the others have the result, not before: what a dead
    process has not yet handed to its network is lost, and the call fails then.
    """
    trees = agreed is along_trees
    dies = member(do="all_reduce", kill=kill, asks=True, trees=trees)
    with agreed(), dies as child, endpoints(2) as made:
        comms = form_with(child, made)
        arrays = [contribution(rank) for rank in range(2)]
        under_way = [
            comm.all_reduce_async(array, timeout=20)
            for comm, array in zip(comms, arrays, strict=True)
        ]
        assert [child.line(), child.line()] == ["formed", "dying"]
        for group in (comm._group for comm in comms):
            ended = lambda g=group: g.in_flight == 0 or voted(g)  # noqa: E731
            eventually(lambda g=group, e=ended: g.loop.ask(e))
        child.tell("now")
        assert child.wait() == -signal.SIGKILL
        wanted = reference([contribution(r) for r in range(3)])
        for pending in under_way:
            np.testing.assert_array_equal(outcome(pending.result), wanted)


@pytest.mark.parametrize("carrier", ["tcp", "in_process"])
def test_a_vote_counts_though_the_news_of_the_death_overtake_it(carrier):
    """A busy member hears of the death from another, before it has read the vote."""
    with world(carrier, 3) as comms:
        held, go = threading.Event(), threading.Event()
        groups = [comm._group for comm in comms]

        def busy() -> None:
            held.set()
            assert go.wait(20)
            groups[0].links[1].exhaust()

        first = comms[0].all_reduce_async(np.ones(10), timeout=20)
        eventually(lambda: groups[0].loop.ask(lambda: groups[0].in_flight == 1))
        asked = threading.Thread(target=groups[0].loop.ask, args=(busy, 30))
        asked.start()
        assert held.wait(20)
        others = [c.all_reduce_async(np.ones(10), timeout=20) for c in comms[1:]]
        for group in groups[1:]:
            eventually(lambda g=group: g.loop.ask(lambda: voted(g)))
        groups[2].loop.ask(lambda: groups[2].close(crash=True))
        eventually(lambda: groups[1].loop.ask(lambda: 2 not in groups[1].links))
        groups[1].loop.ask(lambda: None)  # the news are with the kernel then
        go.set()
        asked.join(20)
        for pending in (first, others[0]):
            np.testing.assert_array_equal(pending.result(20), np.full(10, 3.0))
        assert isinstance(groups[0].fault, PeerLost)


def test_an_abort_that_one_member_does_not_hear_reaches_it_through_others():
    """Rank 2 misses a segment and gives up; rank 0, which voted, hears it from 1."""
    missed = FaultPlan([Fault("drop", step=3, peer=2, times=99)])
    unheard = FaultPlan([Fault("drop", kind=Kind.ABORT, peer=0)])
    with world("tcp", 3, {1: missed, 2: unheard}) as comms:
        arrays = [contribution(comm.rank) for comm in comms]
        faults = together(
            comms,
            lambda c: outcome(
                lambda: c.all_reduce(arrays[c.rank], timeout=0.5 if c.rank == 2 else 20)
            ),
        )
        assert missed.fired
        assert unheard.fired == 1
    assert isinstance(faults[2], Timeout)
    for fault in faults[:2]:
        assert isinstance(fault, CollectiveAborted)
        assert "rank 2 gave up" in str(fault)
    for rank, array in enumerate(arrays):
        np.testing.assert_array_equal(array, contribution(rank))


def test_news_of_a_death_is_fast():
    with member(do="idle") as child, endpoints(2) as made:
        comms = form_with(child, made)
        pending = [c.all_reduce_async(np.ones(SIZE), timeout=20) for c in comms]
        child.signal(signal.SIGKILL)
        faults = [outcome(p.result) for p in pending]
        assert all(isinstance(f, PeerLost) and f.peer == 2 for f in faults)
        assert not any("silent" in str(f) for f in faults)  # its kernel told of it


def test_a_stopped_member_is_lost_though_its_kernel_answers():
    with member(do="idle") as child, endpoints(2, silence=1.0) as made:
        comms = form_with(child, made)
        child.signal(signal.SIGSTOP)
        results = together(comms, reduce_one)
        for fault, unchanged in results:
            assert isinstance(fault, PeerLost)
            assert fault.peer == 2
            assert unchanged
        survivors = form(made, epoch=2)
        assert together(survivors, lambda c: c.all_reduce(np.ones(1))[0]) == [2, 2]


def test_death_during_the_rendezvous_fails_it_for_all_and_it_can_be_repeated():
    host = Rendezvous.listen("127.0.0.1:0")
    with member(do="connect", address=host.address, rank=2, world_size=4) as child:

        def connect(rank):
            return Communicator.connect(
                host if rank == 0 else host.address, rank=rank, world_size=4, timeout=20
            )

        def watch(_):
            eventually(lambda: len(host._members) == 3, 10)
            child.signal(signal.SIGKILL)

        first, second, _ = together(
            [0, 1, None],
            lambda r: watch(r) if r is None else outcome(lambda: connect(r)),
        )
    for fault in (first, second):
        assert isinstance(fault, PeerLost)
        assert fault.peer == 2


@pytest.mark.parametrize("kill_at", [1, 5])
def test_death_of_a_snapshots_owner(kill_at):
    with member(do="snapshot", kill_at=kill_at) as child:
        address = child.line()
        with pytest.raises(PeerLost):
            fetch_snapshot(address, 10)
        assert child.wait() == -signal.SIGKILL
        with pytest.raises(PeerLost, match="refused"):
            fetch_snapshot(address, 10)


def test_rendezvous_refuses_what_does_not_belong_and_lives_on():
    host = Rendezvous.listen("127.0.0.1:0")

    def connect(rank):
        time.sleep(0.1 * rank)
        with Communicator.connect(
            host if rank == 0 else host.address, rank=rank, world_size=3, timeout=20
        ) as comm:
            return comm.all_reduce(np.ones(1))[0]

    def intrude(_):
        eventually(lambda: len(host._members) == 2, 10)
        for rank, size, why in ((1, 3, "taken"), (2, 5, "has 3 members")):
            with pytest.raises(ProtocolError, match=why):
                Communicator.connect(
                    host.address, rank=rank, world_size=size, timeout=5
                )
        return connect(2)

    assert together(
        [0, 1, None], lambda r: intrude(r) if r is None else connect(r)
    ) == [
        3,
        3,
        3,
    ]
