"""The executor of schedules under drawn orders of arrival, and on wrong frames."""

import random
from collections import defaultdict, deque

import ml_dtypes
import numpy as np
import pytest

from pcp.errors import ProtocolError
from pcp.runtime.collectives.direct import Contribution
from pcp.runtime.collectives.reduction import Reduction, bounds
from pcp.runtime.collectives.schedule import (
    MemberSchedule,
    reference,
    ring,
    schedule,
    simulate,
)
from pcp.runtime.collectives.scheduled_reduce import ScheduledReduce
from pcp.runtime.memory.buffer_pool import BufferPool
from pcp.runtime.transport.frame import Frame, Header, Kind

NAMES = ["ring", "halving_doubling", "tree", "central", "two_level:2", "two_level:3"]
LARGE = 300_007
"""Several segments a chunk."""


class Net:
    """Members whose frames wait, link by link in order, until they are delivered.

    A payload is read where it lies as late as that, as by a link that is slow.
    """

    def __init__(self, arrays, plan, op="sum"):
        size = len(arrays)
        chunks = bounds(arrays[0].size, plan.chunks)
        self.queues = defaultdict(deque)
        self.results = {}
        self.members = []
        for rank, array in enumerate(arrays):
            part = Contribution(
                rank,
                array,
                Reduction.of(op, array.dtype),
                lambda flat, rank=rank: self.results.update({rank: flat.copy()}),
                BufferPool(),
            )
            self.members.append(
                ScheduledReduce(
                    [r for r in range(size) if r != rank],
                    {"kind": "all_reduce"},
                    60,
                    part,
                    MemberSchedule.of(plan, rank),
                    chunks,
                )
            )
        for rank, member in enumerate(self.members):
            member.start(_Group(rank, self.queues))

    def run(self, draw: random.Random) -> None:
        while ready := [link for link, queue in self.queues.items() if queue]:
            src, dst = link = draw.choice(ready)
            self.deliver(src, dst, self.queues[link].popleft())

    def deliver(self, src: int, dst: int, frame: Frame) -> None:
        member = self.members[dst]
        match frame.kind:
            case Kind.OPEN:
                member.on_open(src, memoryview(frame.payload))
            case Kind.DATA:
                where = (frame.step, frame.offset, len(frame.payload), 0)
                header = Header(frame.kind, 1, 0, 0, *where)
                room = member.place(src, header)
                room[:] = frame.payload
                assert frame.on_sent is not None
                frame.on_sent()
                member.on_data(src, header, room)
            case Kind.DONE:
                member.on_done(src, frame.step)


class _Group:
    under_way = ()

    def __init__(self, rank, queues):
        self.rank, self.queues = rank, queues

    def send(self, peer, frame):
        self.queues[self.rank, peer].append(frame)

    def compiled_loop(self, peers):
        return None

    def suits(self, peer):
        return 0

    def run_ahead(self, peer, nbytes):
        return 0

    def caught_up(self, peer, cost):
        pass

    def later(self, delay, what):
        return self

    def cancel(self):
        pass

    def retire(self, operation):
        pass


def arrays_of(members, size, dtype="float32"):
    drawn = (np.random.default_rng(rank).normal(size=size) for rank in range(members))
    return [(values * 3).astype(np.dtype(dtype)) for values in drawn]


def found(name, members, size, dtype, seed):
    """The results of all members, as bytes, under a drawn order."""
    net = Net(arrays_of(members, size, dtype), schedule(name, members))
    net.run(random.Random(seed))
    return [net.results[rank].tobytes() for rank in range(members)]


@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("members", [2, 3, 5, 8])
@pytest.mark.parametrize("name", NAMES)
def test_every_order_of_arrival_gives_the_bits_of_the_simulation(name, members, dtype):
    for size in (0, 3, LARGE):
        arrays = arrays_of(members, size, dtype)
        wanted = [result.tobytes() for result in simulate(name, arrays)]
        assert found(name, members, size, dtype, seed=size) == wanted
        assert arrays_of(members, size, dtype)[0].tobytes() == arrays[0].tobytes()


def test_without_its_order_a_sum_has_other_bits(monkeypatch):
    monkeypatch.setattr(ScheduledReduce, "_reached", lambda self, moves, at, end: end)
    arrays = arrays_of(5, LARGE)
    wanted = simulate("central", arrays)[0].tobytes()
    assert any(found("central", 5, LARGE, "float32", s)[0] != wanted for s in range(5))


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_a_ring_in_any_order_gives_the_declared_bits(op):
    arrays, order = arrays_of(4, LARGE), (2, 0, 3, 1)
    # Which zero is the larger one depends on the order of the operands.
    arrays[1][:99], arrays[2][:99] = -0.0, 0.0
    wanted = reference(arrays, op, ring=True, order=order).tobytes()
    net = Net(arrays, ring(tuple(order)), op)
    net.run(random.Random(1))
    assert {result.tobytes() for result in net.results.values()} == {wanted}


def test_a_ring_to_the_root_and_one_without_gathering():
    arrays, order = arrays_of(4, LARGE), (2, 0, 3, 1)
    wanted = reference(arrays, ring=True, order=order)
    net = Net(arrays, ring(tuple(order), root=3))
    net.run(random.Random(2))
    assert net.results[3].tobytes() == wanted.tobytes()
    net = Net(arrays, ring(tuple(order), gather=False))
    net.run(random.Random(3))
    for rank, (start, stop) in enumerate(bounds(LARGE, 4)):
        assert (net.results[rank][start:stop] == wanted[start:stop]).all()


@pytest.mark.parametrize("members", [2, 3, 4, 5, 7, 8, 11, 16])
@pytest.mark.parametrize("name", NAMES)
def test_each_chunk_is_finished_once_and_starts_from_values_of_its_own(name, members):
    plan = schedule(name, members)
    finished = np.zeros(plan.chunks, int)
    for rank in range(members):
        brought = np.zeros(plan.chunks, bool)
        for move in MemberSchedule.of(plan, rank).moves:
            window = slice(*move.chunks)
            finished[window] += move.ends
            if move.reduce:
                # All of it was touched before, or nothing.
                assert set(brought[window]) == {bool(move.after)}
            brought[window] |= not move.sends
    assert (finished == 1).all()


@pytest.mark.parametrize("wrong", ["peer", "step", "offset", "length", "odd", "again"])
def test_a_segment_that_is_not_due_is_refused(wrong):
    net = Net(arrays_of(3, LARGE), schedule("ring", 3))
    for src, dst in [(1, 0), (2, 0), (0, 1), (0, 2), (1, 2), (2, 1)]:
        net.deliver(src, dst, net.queues[src, dst].popleft())
    frame = net.queues[2, 0].popleft()
    facts = {"step": frame.step, "offset": frame.offset, "length": len(frame.payload)}
    if wrong == "again":
        net.deliver(2, 0, frame)
    elif wrong == "odd":
        facts["length"] -= 2
    elif wrong == "length":
        facts["length"] = 4 * (LARGE // 3 + 4)
    elif wrong != "peer":
        facts[wrong] += 4
    header = Header(Kind.DATA, 1, 0, 0, **facts, checksum=0)
    with pytest.raises(ProtocolError, match=r"rank [12] sent"):
        net.members[0].place(1 if wrong == "peer" else 2, header)
