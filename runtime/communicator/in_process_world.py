"""A world whose members are all in this process: a thread for each."""

import itertools
from collections.abc import Mapping
from functools import partial

from pcp.errors import ConfigError
from pcp.runtime.group.failure_detector import HeartbeatOptions
from pcp.runtime.group.group import Group
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.fault_injection import FaultPlan
from pcp.runtime.transport.in_process import InProcessLink, join
from pcp.wire import FEW_MEMBERS


def groups(world_size: int, epoch: int, faults: Mapping[int, FaultPlan]) -> list[Group]:
    """Every member's group, in rank order. The groups' loops are the caller's."""
    if world_size < 1:
        raise ConfigError(f"a world of {world_size} members does not exist")
    loops = [Loop(f"pcp-rank-{rank}") for rank in range(world_size)]
    heartbeat = _heartbeat(world_size)
    found = [
        Group(loop, rank, world_size, epoch, heartbeat, faults.get(rank))
        for rank, loop in enumerate(loops)
    ]
    label = "the peer in this process"
    ends = [
        {
            peer: InProcessLink(group.loop, group, label, epoch)
            for peer in range(world_size)
            if peer != group.rank
        }
        for group in found
    ]
    for group in found:
        group.loop.ask(partial(_admit, group, ends[group.rank]))
    # All know their links by now: no frame comes before its receiver does.
    for a, b in itertools.combinations(range(world_size), 2):
        join(ends[a][b], ends[b][a])
    return found


def _admit(group: Group, links: Mapping[int, InProcessLink]) -> None:
    for peer, link in links.items():
        group.admit(peer, link)


def _heartbeat(world_size: int) -> HeartbeatOptions:
    """As many heartbeats in all, however many members there are.

    The close of a member in this process is known at once.
    """
    usual, times = HeartbeatOptions(), max(1.0, world_size / FEW_MEMBERS)
    return HeartbeatOptions(times * usual.interval, times * usual.silence)
