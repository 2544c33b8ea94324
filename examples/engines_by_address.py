"""The same program over pcp's own transport and over Gloo: the address decides.

python examples/engines_by_address.py

Gloo needs torch. `nccl://host:port` (GPUs) and `mpi://` (under mpirun) are the
other engines that pcp brings; entry points add more.
"""

import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pcp.runtime import Communicator

WORLD = 2


def member(rank: int, address: str) -> str:
    """What each member does, whatever carries its bytes."""
    with Communicator.connect(address, rank=rank, world_size=WORLD, timeout=60) as comm:
        mean = comm.all_reduce(np.full(4, rank, np.float32), "mean")
        rows = comm.all_gather(np.full((rank + 1, 2), rank))
        swapped = comm.permute(np.array([rank]), [(0, 1), (1, 0)])
        engine = address.partition("://")[0]
        return f"{engine} {rank}: mean {mean}, {len(rows)} rows, exchanged {swapped}"


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def main() -> None:
    """The members are threads here; on real machines each is a process."""
    for engine in ("pcp", "gloo"):
        address = f"{engine}://127.0.0.1:{free_port()}"
        with ThreadPoolExecutor(WORLD) as pool:
            for said in pool.map(member, range(WORLD), [address] * WORLD):
                print(said)


if __name__ == "__main__":
    main()
