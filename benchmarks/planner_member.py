"""One member of a training bundle, for benchmarks/planner.py.

    python benchmarks/planner_member.py BUNDLE RANK ADDRESS

Reads numbers of steps from stdin, a line each, and answers with a line of JSON: the
median seconds of a step, the most bytes that IREE's allocator held since the first
one. The allocator is the plain one: pcp's caching one keeps what is freed.
"""

import json
import sys
import time
from statistics import median

import numpy as np

from pcp.bundle import Bundle
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.rendezvous import Rendezvous
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.runtime.program import devices
from pcp.runtime.program.executor import Program
from pcp.runtime.program.mesh_groups import MeshGroups
from pcp.training.trainer.step_loop import Steps


def main() -> None:
    """Step when told to."""
    path, rank, address = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    devices._ALLOCATORS.clear()
    bundle = Bundle.read(path)
    manifest = bundle.manifest
    mesh = manifest.partition_mesh()
    meeting: Rendezvous | str = address
    if rank == 0:
        meeting = Rendezvous.listen(address)
        print(meeting.address, flush=True)
    world = Communicator.connect(meeting, rank=rank, world_size=mesh.size, timeout=300)
    with world:
        groups = MeshGroups.of(world, manifest)
        device = devices.open_device("local-sync")
        with Program.load(bundle, device=device, communicator=groups) as program:
            steps = Steps(program, manifest, mesh, mesh.members[rank])
            random = np.random.default_rng(0)
            batch = {
                t.name: random.integers(0, 2, t.shape).astype(numpy_dtype(t.dtype))
                for t in manifest.function("grad").inputs
                if t.role == "data"
            }
            steps.start(0)
            for line in sys.stdin:
                times = []
                for _ in range(int(line)):
                    start = time.perf_counter()
                    steps.step(batch)
                    times.append(time.perf_counter() - start)
                peak = device.hal.allocator.statistics["device_bytes_peak"]
                answer = {"seconds": median(times), "peak": peak}
                print(json.dumps(answer), flush=True)
            steps.close()
            world.barrier(tag="done")
        groups.close()


if __name__ == "__main__":
    main()
