"""All-reduce against Gloo, in the same two processes, iterations interleaved.

    python benchmarks/collectives.py [--world 2] [--sizes 1 8 64] [--rounds 15]

Needs torch (the `torch` extra). Prints medians in milliseconds for float32
arrays, on the clock and of CPU time (which other load disturbs less), and the
ratios Gloo / pcp. Both reduce in place over loopback TCP; the
results are compared once before anything is timed. pcp's operations also agree
on their outcome and leave the input alone until then; Gloo's do not.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from pcp.runtime.communicator import Communicator
from pcp.runtime.rendezvous import Rendezvous


def timed(what: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of one call: on the clock, and of this process's CPU time."""
    start, cpu = time.perf_counter(), time.process_time()
    what()
    used = time.process_time() - cpu
    return 1e3 * (time.perf_counter() - start), 1e3 * used


Times = list[tuple[float, float]]


def measure(comm: Communicator, size: int, rounds: int) -> tuple[Times, Times]:
    """Times of pcp and of Gloo for arrays of `size` float32 elements."""
    import torch
    import torch.distributed as dist

    ours = np.full(size, comm.rank + 1, np.float32)
    theirs = torch.full((size,), float(comm.rank + 1))
    comm.all_reduce(ours)
    dist.all_reduce(theirs)
    if not np.array_equal(ours, theirs.numpy()):
        raise SystemExit("pcp and Gloo disagree about a sum of small integers")
    times: tuple[Times, Times] = ([], [])
    for _ in range(rounds + 2):
        ours.fill(1)
        theirs.fill_(1)
        comm.barrier()
        times[0].append(timed(lambda: comm.all_reduce(ours)))
        comm.barrier()
        times[1].append(timed(lambda: dist.all_reduce(theirs)))
    return times[0][2:], times[1][2:]


def member(rank: int, world: int, address: str, store: str, options) -> None:
    """One process of the benchmark; rank 0 prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    where = Rendezvous.listen(address) if rank == 0 else address
    comm = Communicator.connect(where, rank=rank, world_size=world)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"tcp://{store}", rank=rank, world_size=world
    )
    if rank == 0:
        print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")
        print(f"{world} processes, {options.rounds} rounds, medians in ms")
        print(f"{'MiB':>8} {'pcp':>9} {'gloo':>9} {'ratio':>7}", end="")
        print(f" {'pcp cpu':>9} {'gloo cpu':>9} {'ratio':>7}")
    for mib in options.sizes:
        ours, theirs = measure(comm, int(mib * (1 << 18)), options.rounds)
        if rank == 0:
            row = f"{mib:>8g}"
            for kind in (0, 1):
                a = statistics.median(t[kind] for t in ours)
                b = statistics.median(t[kind] for t in theirs)
                row += f" {a:>9.2f} {b:>9.2f} {b / a:>7.2f}"
            print(row, flush=True)
    dist.destroy_process_group()
    comm.close()


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; two programs need to know them."""
    import socket

    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return ports


def main() -> int:
    """Start the other ranks, be rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--sizes", type=float, nargs="+", default=[0.0625, 1, 8, 64])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--at", nargs=2, default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        member(options.rank, options.world, *options.at, options)
        return 0
    at = [f"127.0.0.1:{port}" for port in free_ports(2)]
    others = [
        subprocess.Popen([sys.executable, *sys.argv, "--rank", str(r), "--at", *at])
        for r in range(1, options.world)
    ]
    try:
        member(0, options.world, *at, options)
        return max((other.wait(60) for other in others), default=0)
    finally:
        for other in others:
            if other.poll() is None:
                other.kill()


if __name__ == "__main__":
    raise SystemExit(main())
