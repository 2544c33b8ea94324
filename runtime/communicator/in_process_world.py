"""A world whose members are all in this process: a thread for each."""

import itertools
from collections.abc import Mapping

from pcp.errors import ConfigError
from pcp.runtime.group.group import Group
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.fault_injection import FaultPlan
from pcp.runtime.transport.in_process import pair


def groups(world_size: int, epoch: int, faults: Mapping[int, FaultPlan]) -> list[Group]:
    """Every member's group, in rank order. The groups' loops are the caller's."""
    if world_size < 1:
        raise ConfigError(f"a world of {world_size} members does not exist")
    loops = [Loop(f"pcp-rank-{rank}") for rank in range(world_size)]
    found = [
        Group(loop, rank, world_size, epoch, faults=faults.get(rank))
        for rank, loop in enumerate(loops)
    ]
    for a, b in itertools.combinations(range(world_size), 2):
        first, second = pair(
            (loops[a], loops[b]),
            (found[a], found[b]),
            ("the peer in this process", "the peer in this process"),
            epoch,
        )
        found[a].loop.ask(lambda g=found[a], r=b, x=first: g.admit(r, x))
        found[b].loop.ask(lambda g=found[b], r=a, x=second: g.admit(r, x))
    return found
