"""A member of an elastic group that dies while it hands its state to others.

Run with one JSON argument: {"at": coordinator, "revision": n, "seed": n, "dies_in":
the number of the tensor that it sends when it dies}.
"""

import json
import sys

import numpy as np

from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.transport.fault_injection import Fault, FaultPlan
from pcp.runtime.transport.frame import Kind

NAMES = ("a", "b", "c")
SIZE = 300_000
"""Elements of each: several segments."""


def state_of(seed: int) -> dict[str, np.ndarray]:
    """Tensors that are equal for equal seeds."""
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=SIZE) for name in NAMES}


def main(at: str, revision: int, seed: int, dies_in: int) -> None:
    """Join, and hand over as much as that."""
    faults: list[Fault] = []
    plan = FaultPlan(faults)
    comm = Communicator.join(at, name="donor", timeout=60, faults=plan)
    comm.update_membership()
    plain, sent = comm.broadcast_async, [0]

    def counting(*args, **options):
        if sent[0] == dies_in:
            faults.append(Fault("kill", Kind.DATA, skip=1))
        sent[0] += 1
        return plain(*args, **options)

    comm.broadcast_async = counting
    comm.param_sync(state_of(seed), revision=revision, source="elected", timeout=30)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
