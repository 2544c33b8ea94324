"""Members that come and go while they add up numbers, here as threads.

python examples/elastic.py

On real machines `pcp coordinator` runs somewhere, and every member calls
`Communicator.join("that-machine:48148")`.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pcp.runtime import Communicator, Coordinator

STEPS = 6


def member(where: str, name: str, leaves_after: int = STEPS) -> list[str]:
    """Joins, takes the others' state, and works until the steps are done."""
    said = []
    state, step, epoch = {"total": np.zeros(1)}, 0, 0
    with Communicator.join(where, name=name, timeout=30) as comm:

        def one_step(comm) -> bool:
            nonlocal step, epoch
            comm.update_membership()
            if comm.epoch != epoch:  # somebody is new, or gone: agree on the state
                report = comm.param_sync(state, revision=step, source="elected")
                step, epoch = report.revision, comm.epoch
            if step == leaves_after:
                return False
            state["total"] += comm.all_reduce(np.ones(1))
            step += 1
            said.append(f"{name}: step {step} with {sorted(comm.names)}")
            return True

        # Whoever dies or leaves in the middle of a step, it is made once.
        while comm.retry(one_step, timeout=30):
            pass
    return [*said, f"{name}: total {state['total'][0]:g}"]


def main() -> None:
    """Three members, of which one leaves early."""
    with Coordinator.listen("127.0.0.1:0", first=3) as here, ThreadPoolExecutor(4) as p:
        runs = [p.submit(member, here.address, name) for name in ("anna", "ben")]
        runs.append(p.submit(member, here.address, "carl", 3))
        runs[-1].result()
        for run in runs:
            print("\n".join(run.result()))


if __name__ == "__main__":
    main()
