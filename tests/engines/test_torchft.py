"""torchft's process group on pcp: configured anew for each quorum."""

# Torch's stubs do not export what its documentation does.
# pyright: reportPrivateImportUsage=false

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from pcp.errors import CollectiveAborted, PeerLost

pytest.importorskip("torchft")  # it is in the extra "dev"
from pcp.engines.torchft_group import ProcessGroupPcp

WAIT = timedelta(seconds=30)


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


def configured(group: ProcessGroupPcp, store, quorum: int, rank: int, size: int):
    """The group of a quorum, as torchft's manager makes it."""
    place = f"127.0.0.1:{store.port}/torchft/{quorum}/0"
    group.configure(place, f"replica{rank}", rank, size, quorum, 0, 1, [rank])
    return group


def summed(group: ProcessGroupPcp, value: float) -> float:
    tensor = torch.tensor([value])
    group.allreduce([tensor], dist.AllreduceOptions()).get_future().wait()
    return float(tensor)


def test_quorums_follow_each_other(store) -> None:
    """Three replicas, two of them behind the end of one, then all three again."""
    groups = [ProcessGroupPcp(WAIT) for _ in range(3)]
    assert groups[0].errored() is None  # before the first quorum

    def quorum(number: int, members: list[int]) -> list[float]:
        def work(rank: int, member: int) -> float:
            group = configured(groups[member], store, number, rank, len(members))
            assert (group.size(), group.errored()) == (len(members), None)
            return summed(group, 10.0**member)

        return list(p.map(work, range(len(members)), members))

    with ThreadPoolExecutor(3) as p:
        assert quorum(1, [0, 1, 2]) == [111] * 3
        groups[2].abort()
        assert groups[2].errored() is None  # it has no group
        for group in groups[:2]:
            with pytest.raises((PeerLost, CollectiveAborted)):
                group.allreduce([torch.ones(1)], dist.AllreduceOptions()).wait()
            assert isinstance(group.errored(), RuntimeError)
        assert quorum(2, [0, 1]) == [11] * 2
        assert quorum(3, [2, 0, 1]) == [111] * 3
    for group in groups:
        group.shutdown()
        assert group.errored() is None


@pytest.mark.slow  # DDP in threads; quorums are above
def test_what_torchft_gives_as_options(store) -> None:
    """A reduction in place of options, each collective, DDP over the group."""
    groups = [ProcessGroupPcp(WAIT) for _ in range(2)]

    def work(rank: int) -> list[list[float]]:
        group = configured(groups[rank], store, 1, rank, 2)
        largest = torch.tensor([float(rank)])
        group.allreduce([largest], dist.ReduceOp.MAX).wait()
        both = [torch.tensor([rank + 1.0]), torch.tensor([3.0])]
        group.allreduce_coalesced(both, dist.AllreduceCoalescedOptions()).wait()
        gathers = dist.distributed_c10d.AllgatherOptions()
        every = [torch.empty(1) for _ in range(2)]
        group.allgather([every], [torch.tensor([float(rank)])], gathers).wait()
        whole = torch.empty(2)
        group.allgather_into_tensor_coalesced([whole], [torch.ones(1)], gathers).wait()
        sent = torch.tensor([float(rank)])
        group.broadcast_one(sent, 1).wait()
        part = torch.empty(1)
        parts = [torch.tensor([1.0]), torch.tensor([2.0])]
        group.reduce_scatter([part], [parts], dist.ReduceScatterOptions()).wait()
        group.barrier(dist.BarrierOptions()).wait()
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Linear(1, 1, bias=False), process_group=group
        )
        model(torch.tensor([[float(rank)]])).backward()
        gradient = model.module.weight.grad
        made = [largest, *both, *every, whole, sent, part, gradient]
        return [tensor.flatten().tolist() for tensor in made]

    with ThreadPoolExecutor(2) as p:
        found = list(p.map(work, range(2)))
    same = [[1.0], [3.0], [6.0], [0.0], [1.0], [1.0, 1.0], [1.0]]
    assert found == [[*same, [2.0 * (rank + 1)], [0.5]] for rank in range(2)]
    for group in groups:
        group.shutdown()


def test_a_rank_that_does_not_come_ends_the_meeting(store) -> None:
    group = ProcessGroupPcp(timedelta(seconds=0.2))
    with pytest.raises(RuntimeError, match=r"did not|0\.2 s"):
        configured(group, store, 1, 0, 2)
    assert group.errored() is None
