"""`pcp bench topology`: what the edges carry, and the ring that suits them."""

import statistics
import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import numpy as np

from pcp.errors import UsageError
from pcp.runtime.group.peer_health import health_text, straggler_text
from pcp.runtime.topology.topology import Topology
from pcp.runtime.transport.fault_injection import FaultPlan, Shape

if TYPE_CHECKING:
    from pcp.runtime.communicator.communicator import Communicator


def slow_edges(flags: Namespace) -> FaultPlan | None:
    """What `--slow FROM:TO:MB/S` makes of this member's way out."""
    shapes = []
    for text in flags.slow or ():
        try:
            source, target, rate = text.split(":")
            edge, speed = (int(source), int(target)), float(rate)
        except ValueError:
            raise UsageError(f"--slow {text}: write FROM:TO:MB/S, as 0:1:20") from None
        if not 0 <= min(edge) <= max(edge) < flags.world or speed <= 0:
            raise UsageError(f"--slow {text}: ranks are 0 to {flags.world - 1}")
        if edge[0] == (flags.rank or 0):
            shapes.append(Shape(edge[1], 1e6 * speed))
    return FaultPlan(shapes=shapes) if shapes else None


def show(comm: "Communicator", flags: Namespace) -> Topology:
    """Measure, choose, and say on rank 0 what came of it."""
    size = max(flags.sizes)
    before = _seconds(comm, size, flags.rounds)
    topology = comm.optimize_topology(nbytes=int(size * (1 << 20)), background=0.0)
    after = _seconds(comm, size, flags.rounds)
    late = comm.stragglers()
    if comm.rank == 0:
        print(topology.text())
        print(
            f"\nall_reduce of {size:g} MiB: {1e3 * before:.1f} ms along the ranks, "
            f"{1e3 * after:.1f} ms along this ring\n"
        )
        print(straggler_text(late))
        print("\n" + health_text(comm.health()), flush=True)
    return topology


def _seconds(comm: "Communicator", mib: float, rounds: int) -> float:
    """The slowest member's median."""
    array = np.zeros(max(1, int(mib * (1 << 18))), np.float32)
    took: list[Any] = []
    for _ in range(rounds + 1):
        comm.barrier()
        begin = time.perf_counter()
        comm.all_reduce(array)
        took.append(time.perf_counter() - begin)
    median = np.array([statistics.median(took[1:])])
    return float(comm.all_reduce(median, "max")[0])
