"""A member of an elastic group in its own process: sums, as long as it lives.

Run with one JSON argument: {"at": coordinator, "name": ..., "bit": n, "steps": n,
"size": elements}. Every step adds the sum of all members' powers of two to a
total. Prints a line of JSON a step, and one with the total's digest at the end.
"""

import json
import sys
import time

import numpy as np

from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.param_sync import digest


def main(at: str, name: str, bit: int, steps: int, size: int) -> None:
    """Join, and work until `steps` steps are done."""
    comm = Communicator.join(at, name=name, timeout=60, silence=2, heartbeat=0.2)
    state = {"total": np.zeros(size, np.float64)}
    at_epoch, step = 0, 0

    def one(comm) -> bool:
        nonlocal at_epoch, step
        comm.update_membership()
        if comm.epoch != at_epoch:
            report = comm.param_sync(state, revision=step, source="elected")
            step, at_epoch = report.revision, comm.epoch
        if step >= steps:
            return False
        mine = np.full(size, 2.0**bit)
        comm.all_reduce(mine)
        assert (mine == mine[0]).all()
        state["total"] += mine
        step += 1
        time.sleep(0.03)  # so that others have the time to come and go
        said = {"step": step, "epoch": comm.epoch, "sum": mine[0], "names": comm.names}
        print(json.dumps(said), flush=True)
        return True

    while comm.retry(one, timeout=60):
        pass
    print(json.dumps({"total": digest(state["total"]).hex()}), flush=True)
    comm.close()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
