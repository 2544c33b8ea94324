"""Torch's groups on pcp that change: elastic worlds, torchft, and who did not come."""

# Torch's stubs do not export what its documentation does.
# pyright: reportPrivateImportUsage=false

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from pcp.engines import torch_backend, torch_elastic
from pcp.engines.torch_backend import PcpProcessGroup
from pcp.errors import CollectiveAborted, PeerLost, Timeout, UsageError
from pcp.runtime import Communicator, Coordinator

SECONDS = 30
WAIT = timedelta(seconds=SECONDS)


def summed(group, value: float) -> float:
    """The sum of the ranks' values."""
    tensor = torch.tensor([value])
    group.allreduce([tensor]).wait()
    return float(tensor)


def entered(address: str, name: str) -> PcpProcessGroup:
    """A rank of an elastic world, as `init_process_group` makes it."""
    store, rank, size = next(
        torch_elastic.rendezvous(f"pcp://{address}?name={name}", timeout=WAIT)
    )
    given = dist.PrefixStore("default_pg", store)
    group = torch_backend.create(given, rank, size, WAIT)
    group.store = store  # as torch keeps it
    return group


def test_ranks_enter_and_die_under_one_group() -> None:
    """Two, then three, then two without the first, whose store goes with it."""
    went_in, steps = threading.Event(), threading.Barrier(3, timeout=SECONDS)

    def old(address: str, name: str) -> list[float]:
        group, found = entered(address, name), []
        with closing(group.comm):
            assert group.update_membership()  # it has just been formed
            found.append(summed(group, 1))
            went_in.set()
            while not group.update_membership(WAIT):
                pass
            assert group.size() == dist.get_world_size(group) == 3
            found.append(group.retry(lambda: summed(group, 1)))
            steps.wait()
            if group.rank() == 0:
                group.comm._crash()
                return found
            return [*found, *after(group)]

    def after(group: PcpProcessGroup) -> list[float]:
        """What the survivors go on with."""
        with pytest.raises((PeerLost, CollectiveAborted)):
            summed(group, 1)
        assert isinstance(group.errored(), PeerLost | CollectiveAborted)
        found = group.retry(lambda: summed(group, 1), WAIT)
        assert group.errored() is None
        assert group.size() == 2
        made = group.split_group([0, 1])
        assert made is not None
        with closing(made.comm):
            return [found, summed(made, 1)]

    def new(address: str) -> list[float]:
        assert went_in.wait(SECONDS)
        group = entered(address, "new")
        with closing(group.comm):
            assert group.update_membership()
            found = [group.retry(lambda: summed(group, 1))]
            steps.wait()
            return [*found, *after(group)]

    with Coordinator.listen("127.0.0.1:0", first=2) as here, ThreadPoolExecutor() as p:
        runs = [p.submit(old, here.address, name) for name in ("a", "b")]
        runs.append(p.submit(new, here.address))
        found = [run.result(SECONDS) for run in runs]
    assert sorted(found[:2]) == [[2, 3], [2, 3, 2, 2]]
    assert found[2] == [3, 2, 2]


def test_what_an_elastic_world_is_not() -> None:
    with pytest.raises(UsageError, match=r"takes name=\.\.\., not rank, world_size"):
        next(torch_elastic.rendezvous("pcp://127.0.0.1:1?rank=0&world_size=2"))
    (alone,) = Communicator.in_process(1)
    with alone, pytest.raises(UsageError, match="this group's members are fixed"):
        torch_elastic.renew(PcpProcessGroup(alone), 1)


def test_a_monitored_barrier_names_who_is_missing() -> None:
    groups = [PcpProcessGroup(comm) for comm in Communicator.in_process(4)]
    soon = timedelta(seconds=0.3)

    def called(rank: int, everyone: bool) -> str:
        try:
            groups[rank].monitored_barrier(soon, wait_all_ranks=everyone)
        except (Timeout, CollectiveAborted) as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(4) as p:
        assert list(p.map(called, range(4), [False] * 4)) == [""] * 4
        first, third = p.map(called, (0, 2), (False, False))
        assert "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 300 ms" in first
        assert third.startswith("Rank 2 successfully reached monitoredBarrier, but")
        assert third.endswith("rank 0: Rank 1 did not come in time")
        # Those that come later find why, and stay matched.
        assert all("Rank 1 did not" in said for said in p.map(called, (1, 3), (0, 0)))
        first, fourth = p.map(called, (0, 3), (True, True))
        assert "Ranks 1, 2 failed to pass monitoredBarrier" in first
        assert fourth.endswith("Ranks 1, 2 did not come in time")
    with pytest.raises(RuntimeError, match="Rank 0 timed out in monitoredBarrier"):
        groups[0].monitored_barrier(timedelta())
    for group in groups:
        group.comm.close(timeout=0)
