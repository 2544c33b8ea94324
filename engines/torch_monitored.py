"""`torch.distributed.monitored_barrier`: a barrier that says who did not come.

Rank 0 waits for a word of each other rank, and then tells all of them who is missing.
A rank that comes later finds that answer, so calls stay matched. The messages are
those that scripts for Gloo look for.
"""

# Torch's documentation has names that its modules do not export.
# pyright: reportPrivateImportUsage=false

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from pcp.errors import CollectiveAborted, RuntimeFault, Timeout
from pcp.runtime.collectives.call import seconds
from pcp.runtime.communicator.communicator import Communicator

_TAG = -1
"""Torch's own tags are not negative."""
_LONGER_S = 1.0
"""Seconds that the others wait longer than rank 0, which answers at its end."""
_FIRST = 0
"""The rank that waits for the others."""


def for_groups_of(kind: Any) -> Callable[..., Any]:
    """Torch's `monitored_barrier`, which groups of `kind` have as a method."""
    torchs: Any = c10d.monitored_barrier

    @functools.wraps(torchs)
    def monitored_barrier(
        group: Any = None,
        timeout: timedelta | float | None = None,
        wait_all_ranks: bool = False,
    ) -> None:
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            torchs(group, timeout, wait_all_ranks)  # warns
            return
        asked: Any = group or c10d._get_default_group()
        if isinstance(asked, kind):
            asked.monitored_barrier(timeout, wait_all_ranks)
        else:
            torchs(group, timeout, wait_all_ranks)

    return monitored_barrier


def monitored_barrier(
    comm: Communicator, timeout: timedelta | float | None, wait_all_ranks: bool
) -> None:
    """Wait until all ranks have called it.

    On rank 0, after `timeout` (s), Timeout names the first rank that did not come, or
    with `wait_all_ranks` all of them. On the others CollectiveAborted names them.
    """
    limit = comm.timeout if timeout is None else seconds(timeout)
    if comm.rank == _FIRST:
        _wait_for_all(comm, limit, wait_all_ranks)
    else:
        _report(comm, limit)


def _wait_for_all(comm: Communicator, limit: float, every: bool) -> None:
    told = f"{1e3 * limit:g} ms"
    if limit <= 0:
        raise Timeout(f"Rank {_FIRST} timed out in monitoredBarrier after {told}")
    others = [rank for rank in range(comm.world_size) if rank != _FIRST]
    calls = {
        rank: comm.recv_async(_word(), rank, _TAG, timeout=limit) for rank in others
    }
    faults: dict[int, RuntimeFault] = {}
    for rank, call in calls.items():
        if not faults or every:
            try:
                call.result()
            except RuntimeFault as fault:
                faults[rank] = fault
        call.add_done_callback(_heard)
    missing = np.zeros(comm.world_size, np.uint8)
    missing[list(faults)] = 1
    for answer in [comm.send_async(missing, rank, _TAG) for rank in others]:
        answer.add_done_callback(_heard)
    if faults:
        lost = [str(fault) for fault in faults.values() if not _late(fault)]
        raise Timeout(
            f"[Rank {_FIRST}]: {_named(list(faults))} failed to pass monitoredBarrier "
            f"in {told}" + "".join(f"; {fault}" for fault in lost),
            peers=list(faults),
        )


def _report(comm: Communicator, limit: float) -> None:
    """Say that this rank is here, and hear who is not."""
    here = comm.send_async(_word(), _FIRST, _TAG)
    here.add_done_callback(_heard)
    missing = np.zeros(comm.world_size, np.uint8)
    try:
        comm.recv(missing, _FIRST, _TAG, timeout=max(limit, 0) + _LONGER_S)
        absent = np.flatnonzero(missing).tolist()
        why = f"{_named(absent)} did not come in time" if absent else ""
    except RuntimeFault as fault:
        why = str(fault)
    if why:
        raise CollectiveAborted(
            f"Rank {comm.rank} successfully reached monitoredBarrier, but received "
            f"errors while waiting for send/recv from rank {_FIRST}: {why}"
        )


def _word() -> np.ndarray:
    return np.zeros(1, np.uint8)


def _heard(pending: Any) -> None:
    """Note that a failure is told by the barrier."""
    pending.told()


def _late(fault: RuntimeFault) -> bool:
    return isinstance(fault, Timeout)


def _named(ranks: Sequence[int]) -> str:
    return f"Rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
