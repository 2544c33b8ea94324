"""Measure the network, and let large reductions go round its slow edge.

python examples/topology.py

The members are threads here, and one edge is made slow; on real machines
`Communicator.connect` joins processes, and the network is what it is.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pcp.runtime import Communicator
from pcp.runtime.communicator.link_probe import Effort
from pcp.runtime.transport.fault_injection import FaultPlan, Shape

WORLD = 4
SLOW = FaultPlan(shapes=[Shape(peer=1, bytes_per_second=4e6)])
QUICK = Effort(most=1 << 20, long_enough=0.02, seconds=0.1)
"""Real networks deserve the half second an edge that is the default."""


def timed(comm: Communicator) -> float:
    """Seconds of a reduction of 1 MB."""
    comm.barrier()
    start = time.perf_counter()
    comm.all_reduce(np.ones(250_000, np.float32))
    return time.perf_counter() - start


def member(comm: Communicator) -> list[str]:
    """What each process of a real group would do between two steps."""
    before = timed(comm)
    topology = comm.optimize_topology(effort=QUICK)
    after = timed(comm)
    return [
        topology.text(),
        f"1 MB: {before:.3f} s, then {after:.3f} s along {comm.ring_order}",
        *(
            f"late: rank {s.rank} by {1e3 * s.lateness:.1f} ms"
            for s in comm.stragglers()
        ),
    ]


def main() -> None:
    """From rank 0 to rank 1 only 4 MB a second go through."""
    members = Communicator.in_process(WORLD, faults={0: SLOW})
    with ThreadPoolExecutor(WORLD) as pool:
        said = list(pool.map(member, members))
    print("\n".join(said[0]))
    for comm in members:
        comm.close()


if __name__ == "__main__":
    main()
