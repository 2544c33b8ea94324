"""All-reduce against Gloo, in the same processes, iterations interleaved.

    python benchmarks/collectives.py [--world 2] [--sizes 1 8 64] [--rounds 15]
                                     [--undisturbed] [--mpi tcp|memory]
                                     [--pccl 1 4] [--plot rates.svg]

Needs torch (the `torch` extra). Prints medians in milliseconds for float32
arrays, on the clock and of CPU time (which other load disturbs less), and the
ratios Gloo / pcp. All reduce on one machine, in place unless said otherwise; the
results are compared once before anything is timed. The contestants:

    memory   pcp as it comes: between processes of one machine through memory
    new      the same into a new array: all_reduced
    straight the same of an array of shared_empty
    tcp      pcp with shared_memory=False: loopback TCP, as Gloo
    tcp-new  the same into a new array
    int8     the same in place, compressed
    gloo     torch.distributed
    mpi      with --mpi tcp or --mpi memory: mpi4py's Allreduce over that of Open MPI
    pccl/N   with --pccl: over loopback TCP with N connections (see pccl_group.py)
    copy     what the machine does alone: the array copied once by every process
    wire     the bytes of a ring each way over bare loopback connections, no sums

With `--undisturbed` (root) other programs get the processors only when these leave
them: what a machine for itself would measure, on one that is shared.

pcp's operations also agree on their outcome and leave the input alone until
then, and check every payload that went over TCP; Gloo's do not.
"""

import argparse
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.group.rendezvous import Rendezvous
from pcp.runtime.memory.shared_arrays import shared_empty

Call = Callable[[np.ndarray], object]
ALONE = ("copy", "wire")
PIECE = 512 << 10


def timed(what: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of one call: on the clock, and of this process's CPU time."""
    start, cpu = time.perf_counter(), time.process_time()
    what()
    used = time.process_time() - cpu
    return 1e3 * (time.perf_counter() - start), 1e3 * used


def contestants(
    memory: Communicator, tcp: Communicator, addresses: list[str], options
) -> dict[str, Call]:
    """What reduces an array in place, by name; PCCL's masters have the addresses."""
    import torch
    import torch.distributed as dist

    calls = {
        "memory": memory.all_reduce,
        "new": memory.all_reduced,
        "straight": memory.all_reduced,
        "tcp": tcp.all_reduce,
        "tcp-new": tcp.all_reduced,
        "int8": lambda array: tcp.all_reduce(array, compression="int8"),
        "gloo": lambda array: dist.all_reduce(torch.from_numpy(array)),
    }
    for connections, address in zip(options.pccl, addresses, strict=True):
        from pccl_group import pccl

        calls[f"pccl/{connections}"] = pccl(
            address, memory.rank, memory.world_size, connections
        )
    if options.mpi:
        from mpi4py import MPI  # pyright: ignore[reportMissingImports]

        world = MPI.COMM_WORLD
        calls["mpi"] = lambda array: world.Allreduce(MPI.IN_PLACE, array)
    return calls


class Alone:
    """What reduces nothing: how fast memory and loopback TCP are by themselves."""

    def __init__(self, comm: Communicator) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        ports = comm.all_gather(np.array([listener.getsockname()[1]]))
        after = int(ports[(comm.rank + 1) % comm.world_size])
        self._out = socket.create_connection(("127.0.0.1", after))
        self._in, _ = listener.accept()
        listener.close()
        self._share = 2 * (comm.world_size - 1) / comm.world_size
        self._room = memoryview(bytearray(PIECE))
        self._spare = np.empty(0, np.float32)

    def copy(self, array: np.ndarray) -> None:
        """Once through memory."""
        if self._spare.size != array.size:
            self._spare = np.zeros_like(array)
        np.copyto(self._spare, array)

    def wire(self, array: np.ndarray) -> None:
        """As many bytes as a ring sends and receives."""
        nbytes = int(array.nbytes * self._share)
        sender = threading.Thread(target=self._send, args=(array, nbytes))
        sender.start()
        while nbytes:
            nbytes -= self._in.recv_into(self._room[: min(nbytes, PIECE)])
        sender.join()

    def _send(self, array: np.ndarray, nbytes: int) -> None:
        octets = array.view(np.uint8).data
        while nbytes:
            part = octets[: min(nbytes, len(octets))]
            self._out.sendall(part)
            nbytes -= len(part)


def measure(
    calls: dict[str, Call], comm: Communicator, size: int, rounds: int
) -> dict[str, tuple[float, float]]:
    """Each contestant's median times for arrays of `size` float32 elements."""
    arrays = {name: np.empty(size, np.float32) for name in calls}
    arrays["straight"] = shared_empty(size)
    expected = comm.world_size * (comm.world_size + 1) / 2
    for name, call in calls.items():
        arrays[name].fill(comm.rank + 1)
        result = call(arrays[name])
        if name in ALONE:
            continue
        found = result if isinstance(result, np.ndarray) else arrays[name]
        if not np.allclose(found, expected, rtol=0.02):
            raise SystemExit(f"{name} does not add up")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, call in calls.items():
            arrays[name].fill(1)
            comm.barrier()
            times[name].append(timed(lambda call=call, name=name: call(arrays[name])))
    return {
        name: (
            statistics.median(clock for clock, _ in taken[2:]),
            statistics.median(cpu for _, cpu in taken[2:]),
        )
        for name, taken in times.items()
    }


def before_others() -> None:
    """Have a processor before every program without such a priority."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (OSError, AttributeError) as error:
        needed = "--undisturbed needs Linux, and root or CAP_SYS_NICE"
        raise SystemExit(f"{needed}: {error}") from error


def member(rank: int, world: int, addresses: list[str], options) -> None:
    """One process of the benchmark; rank 0 prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if options.undisturbed:
        before_others()
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[rank % len(cpus)]})

    def connected(address: str, shared: bool) -> Communicator:
        where = Rendezvous.listen(address) if rank == 0 else address
        return Communicator.connect(
            where, rank=rank, world_size=world, shared_memory=shared
        )

    memory, tcp = connected(addresses[0], True), connected(addresses[1], False)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"tcp://{addresses[2]}", rank=rank, world_size=world
    )
    calls = contestants(memory, tcp, addresses[3:], options)
    alone = Alone(memory)
    calls |= {name: getattr(alone, name) for name in ALONE}
    if rank == 0:
        print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores")
        print(f"{world} processes, {options.rounds} rounds, medians: ms (Gloo / it)")
        for kind in ("clock", "CPU"):
            print(f"{'MiB':>8} " + "".join(f"{f'{n}, {kind}':>18}" for n in calls))
    rows = {}
    for mib in options.sizes:
        times = rows[mib] = measure(calls, memory, int(mib * (1 << 18)), options.rounds)
        if rank == 0:
            for kind in (0, 1):
                gloo = times["gloo"][kind]
                row = (
                    f"{t[kind]:>9.4f} ({gloo / t[kind]:>5.2f})" for t in times.values()
                )
                print(f"{mib:>8.4g} " + "".join(f"{cell:>18}" for cell in row))
            sys.stdout.flush()
    if rank == 0 and options.plot:
        plot(rows, options.plot)
    dist.destroy_process_group()
    for comm in (memory, tcp):
        comm.close()


def plot(rows: dict[float, dict[str, tuple[float, float]]], path: str) -> None:
    """Algorithmic bandwidth, the array's bytes over the time, by size."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for name in next(iter(rows.values())):
        rates = [mib * 1.048576 / times[name][0] for mib, times in rows.items()]
        axes.plot(list(rows), rates, "--" if name in ALONE else "o-", label=name)
    axes.set(xscale="log", yscale="log", xlabel="MiB", ylabel="GB/s")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path)
    pyplot.close(figure)


MPI = {
    "tcp": ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"],
    "memory": ["--mca", "pml", "ob1", "--mca", "btl", "sm,self"],
}
"""What Open MPI may use; one program has one of them."""


def mpirun(options: argparse.Namespace) -> list[str]:
    """The command that starts the members when MPI takes part."""
    beside = Path(sys.executable).with_name("mpirun")
    found = str(beside) if beside.exists() else shutil.which("mpirun")
    if found is None or find_spec("mpi4py") is None:
        raise SystemExit("--mpi needs mpi4py and Open MPI's mpirun")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    count = ["--oversubscribe", "--bind-to", "none", "-n", str(options.world)]
    return [found, *root, *count, *MPI[options.mpi]]


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; two programs need to know them."""
    socks = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in socks]
    for sock in socks:
        sock.close()
    return ports


def main() -> int:
    """Start the other ranks, be rank 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument(
        "--sizes", type=float, nargs="+", default=[0.00390625, 1, 8, 64]
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--undisturbed", action="store_true", help="before all other programs; root"
    )
    parser.add_argument("--plot", help="draw the rates into this file")
    parser.add_argument("--mpi", choices=tuple(MPI), help="also Open MPI, over this")
    parser.add_argument(
        "--pccl", type=int, nargs="+", default=[], help="also PCCL, connections"
    )
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--at", nargs="+", default=[], help=argparse.SUPPRESS)
    options = parser.parse_args()
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or options.rank)
    if options.at:
        member(rank, options.world, options.at, options)
        return 0
    if options.undisturbed:
        before_others()  # or say why not, before the others start
    at = [f"127.0.0.1:{port}" for port in free_ports(3 + len(options.pccl))]
    if options.mpi:
        started = [*mpirun(options), sys.executable, *sys.argv, "--at", *at]
        return subprocess.run(started).returncode
    others = [
        subprocess.Popen([sys.executable, *sys.argv, "--rank", str(r), "--at", *at])
        for r in range(1, options.world)
    ]
    try:
        member(0, options.world, at, options)
        return max((other.wait(60) for other in others), default=0)
    finally:
        for other in others:
            if other.poll() is None:
                other.kill()


if __name__ == "__main__":
    raise SystemExit(main())
