"""Four members of one group over TCP, here as threads of one process.

python examples/collectives.py
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pcp.runtime import Communicator, Rendezvous

WORLD = 4


def member(rank: int, address: "str | Rendezvous") -> list[str]:
    """What one process of a real group would do."""
    with Communicator.connect(address, rank=rank, world_size=WORLD, timeout=30) as comm:
        total = comm.all_reduce(np.full(5, rank, np.float32), op="sum")
        share = comm.reduce_scatter(np.arange(8, dtype=np.float32))
        everyone = comm.all_gather(np.array([rank], np.int32))
        future = comm.all_reduce_async(np.ones(1 << 20, np.float32), op="mean")
        comm.broadcast(weights := np.full(2, float(rank)), root=3)
        large = future.result(30)
        comm.barrier()
        return [
            f"rank {rank}: sum {total}, my share {share}, everyone {everyone.ravel()}",
            f"rank {rank}: from rank 3 {weights}, mean of 4 MiB {large[0]}, "
            f"{comm.bytes_sent} bytes sent",
        ]


def main() -> None:
    """Rank 0 hosts the rendezvous on a free port; the others call it."""
    rendezvous = Rendezvous.listen("127.0.0.1:0")
    addresses = [rendezvous, *[rendezvous.address] * (WORLD - 1)]
    with ThreadPoolExecutor(WORLD) as pool:
        for lines in pool.map(member, range(WORLD), addresses):
            print("\n".join(lines))


if __name__ == "__main__":
    main()
