"""What a large world costs before any bytes move: frames, processor time, forming.

    python benchmarks/control.py [--members 16 64 256] [--bytes 4096] [--processes 64]

For each number of members, in this process: seconds until the world has formed, frames
of one all_reduce of `--bytes`, beside N log2 N, processor seconds of it (all members
together, the least of `--rounds`), and frames that the idle world sends in a second.
`--processes N` forms a world of so many processes over loopback TCP, with their start.
"""

import argparse
import math
import os
import subprocess
import sys
import time

import numpy as np

from pcp.runtime import Communicator
from pcp.runtime.transport.frame import Frame
from pcp.runtime.transport.in_process import InProcessLink

IDLE_SECONDS = 5.0


class Counter:
    """Counts the frames of worlds in this process."""

    def __init__(self) -> None:
        self.frames = 0
        counter, send = self, InProcessLink.send

        def counted(self: InProcessLink, frame: Frame) -> None:
            counter.frames += 1
            send(self, frame)

        InProcessLink.send = counted


def measure(members: int, nbytes: int, rounds: int, counter: Counter) -> str:
    """A line of the table."""
    began = time.monotonic()
    world = Communicator.in_process(members)
    formed = time.monotonic() - began
    found = []
    for _ in range(rounds):
        arrays = [np.ones(nbytes // 4, np.float32) for _ in world]
        before, spent = counter.frames, time.process_time()
        pending = [c.all_reduce_async(a) for c, a in zip(world, arrays, strict=True)]
        for future in pending:
            assert (future.result(120) == members).all()
        found.append((time.process_time() - spent, counter.frames - before))
    before = counter.frames
    time.sleep(IDLE_SECONDS)
    idle = (counter.frames - before) / IDLE_SECONDS
    for member in world:
        member.close(timeout=0)
    spent, frames = min(found)
    unit = members * math.log2(members)
    return (
        f"{members:>8}{formed:>10.2f}{frames:>10}{frames / unit:>12.2f}{spent:>12.3f}"
        f"{idle:>10.0f}"
    )


def processes(count: int) -> str:
    """Seconds until a world of so many processes has formed, with their start."""
    began = time.monotonic()
    command = [sys.executable, __file__, "--world", str(count)]
    with subprocess.Popen(
        [*command, "--rank", "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdout is not None
        address = first.stdout.readline().decode().strip()
        assert address, "the first process did not start"
        others = [
            subprocess.Popen([*command, "--rank", str(rank), "--at", address])
            for rank in range(1, count)
        ]
        formed = first.stdout.readline()
        took = time.monotonic() - began
        codes = [other.wait() for other in others]
    assert formed == b"formed\n", "the world did not form"
    assert not any(codes), codes
    return f"{count} processes over TCP formed in {took:.1f} s"


def member(rank: int, world_size: int, address: str) -> None:
    """A process of `processes`."""
    from pcp.runtime import Rendezvous

    where: str | Rendezvous = address
    if rank == 0:
        where = Rendezvous.listen("127.0.0.1:0", shared_memory=False)
        print(where.address, flush=True)
    options = {"timeout": 120.0, "shared_memory": False}
    with Communicator.connect(
        where, rank=rank, world_size=world_size, **options
    ) as comm:
        if rank == 0:
            print("formed", flush=True)
        assert comm.all_reduce(np.ones(1024, np.float32))[0] == world_size


def main() -> None:
    """As the module says."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--members", type=int, nargs="*", default=[16, 64, 256])
    flags.add_argument("--bytes", type=int, default=4096)
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--processes", type=int, default=0)
    flags.add_argument("--world", type=int, help=argparse.SUPPRESS)
    flags.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    flags.add_argument("--at", default="", help=argparse.SUPPRESS)
    chosen = flags.parse_args()
    if chosen.world:
        member(chosen.rank, chosen.world, chosen.at)
        return
    if chosen.members:
        print(f"{os.cpu_count()} processors, all_reduce of {chosen.bytes} bytes")
        heads = ("members", "formed s", "frames", "/ N log2 N", "processor s", "idle/s")
        print(f"{heads[0]:>8}{heads[1]:>10}{heads[2]:>10}{heads[3]:>12}", end="")
        print(f"{heads[4]:>12}{heads[5]:>10}")
        counter = Counter()
        for members in chosen.members:
            print(measure(members, chosen.bytes, chosen.rounds, counter), flush=True)
    if chosen.processes:
        print(processes(chosen.processes))


if __name__ == "__main__":
    main()
