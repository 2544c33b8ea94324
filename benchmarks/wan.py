"""All-reduce over an emulated wide-area network, against Gloo and PCCL.

    python benchmarks/wan.py [--world 2] [--rate 1e9] [--rtt 0.1] [--loss 0]
                             [--sizes 16 64] [--rounds 3] [--only pcp gloo ...]
                             [--without-root] [--undisturbed] [--slow 0:1:20]

Needs root (network namespaces and /dev/net/tun) and, for gloo, torch. Every
member lives in a namespace of its own; one loop of this process carries the
packets between them: a member's packets leave at `--rate` bits per second, wait
in a queue of 16 MB, are lost at random, and arrive half a round trip later. From
rank 0 to rank 1 `--slow 0:1:20` makes the network 20 times slower.
With `--undisturbed` other programs get the processors only when these leave them:
what a machine for itself would measure, on one that is shared.
Prints the median seconds of a float32 all-reduce, and 2(N-1)/N times the array's
bits over that time. The contestants:

    pcp        as it comes: as many connections as the distance asks for
    pcp/N      with streams=N
    ring       pcp after it measured its edges: its best ring, or halving and doubling
    halving    pcp with algorithm="halving_doubling": as few steps as can be
    direct     pcp with algorithm="two_level:N": every chunk to who sums it, and back
    int8       pcp, compressed; int8/N with streams=N
    gloo       torch.distributed
    pccl/N     PCCL with N connections (see pccl_group.py); pccl-int8/N, with 8 bits
"""

import argparse
import fcntl
import heapq
import os
import random
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_OFFLOADS = 0x01 | 0x02
"""Checksums, and segmentation of TCP over IPv4."""
_MTU = 9000
_HEAD = 10
"""Before every packet: what the card has still to do to it (struct virtio_net_hdr)."""
_VNET = struct.Struct("=HHH")
"""Flags and kind, length of the headers, payload of each packet."""
_LARGEST = _HEAD + (1 << 16)
_QUEUE_BYTES = 16 << 20
_PORT = 29500
CONTESTANTS = ("pcp", "pcp/1", "int8", "gloo")
_WITHOUT_ROOT = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
Reduce = Callable[[np.ndarray], object]
Slow = tuple[int, int, float]
"""From a member, to a member, how many times slower."""


# --- The network ---


def can_emulate() -> bool:
    """Whether this process may lay namespaces and their devices."""
    return os.geteuid() == 0 and os.path.exists("/dev/net/tun")


def before_others(priority: int) -> None:
    """Have a processor before every program without such a priority."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(priority))
    except (OSError, AttributeError):
        print("the processors are shared with everything else")


def address(rank: int) -> str:
    """A member's address in the emulated network."""
    return f"10.99.0.{rank + 1}"


def ip(*arguments: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *arguments], check=True)


@contextmanager
def namespace(rank: int, offload: bool) -> Iterator[tuple[str, int]]:
    """A member's namespace: its name, and the descriptor its packets go through.

    With `offload` packets come in bursts of up to 64 KiB, as a network card gets them
    that cuts them up itself, and go on like that: so carrying them is not the limit.
    """
    name, device = f"pcp-wan-{os.getpid()}-{rank}", f"pcpwan{rank}"
    ip("netns", "add", name)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", device.encode(), flags))
        if offload:
            fcntl.ioctl(tun, _TUNSETOFFLOAD, _OFFLOADS)
        ip("link", "set", device, "netns", name)
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", device, "mtu", str(_MTU), "up")
        ip("-n", name, "addr", "add", f"{address(rank)}/24", "dev", device)
        yield name, tun
    finally:
        os.close(tun)
        ip("netns", "del", name)


class Network:
    """Carries packets between the members' devices, late and at a limited rate."""

    def __init__(
        self,
        tuns: list[int],
        rate: float,
        rtt: float,
        loss: float,
        slow: Sequence[Slow] = (),
    ) -> None:
        self._ports = {
            bytes(map(int, address(rank).split("."))): tun
            for rank, tun in enumerate(tuns)
        }
        self._tuns = tuns
        self._rate, self._delay, self._loss = rate / 8, rtt / 2, loss
        self._slow = {(tuns[a], tuns[b]): factor for a, b, factor in slow}
        self._free: dict[Any, float] = dict.fromkeys([*tuns, *self._slow], 0.0)
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._order = 0
        self._random = random.Random(0)
        self.dropped = {"full": 0, "loss": 0}
        """Packets that a full queue, and chance, took."""

    def run(self, until: Callable[[], bool]) -> None:
        """Carry packets until `until()`, which is asked about every 50 ms."""
        poll = select.epoll()
        for tun in self._tuns:
            poll.register(tun, select.EPOLLIN)
        asked = 0.0
        while True:
            now = time.monotonic()
            if now > asked + 0.05:
                asked = now
                if until():
                    return
            wait = self._under_way[0][0] - now if self._under_way else 0.05
            for tun, _ in poll.poll(min(0.05, max(0.0, wait))):
                self._take(tun)
            self._deliver()

    def _take(self, tun: int) -> None:
        for _ in range(64):
            try:
                packet = os.read(tun, _LARGEST)
            except BlockingIOError:
                return
            self._route(tun, packet, time.monotonic())

    def _route(self, tun: int, packet: bytes, now: float) -> None:
        target = self._ports.get(packet[_HEAD + 16 : _HEAD + 20])
        if packet[_HEAD] >> 4 != 4 or target is None:
            return
        factor = self._slow.get((tun, target))
        line = tun if factor is None else (tun, target)
        rate = self._rate / (factor or 1.0)
        start = max(now, self._free[line])
        if (start - now) * rate > _QUEUE_BYTES:
            self.dropped["full"] += 1
            return
        self._free[line] = start + _on_the_line(packet) / rate
        if self._random.random() < self._loss:
            self.dropped["loss"] += 1
            return
        self._order += 1
        arrival = self._free[line] + self._delay
        heapq.heappush(self._under_way, (arrival, self._order, target, packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._under_way and self._under_way[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._under_way)
            try:
                os.write(target, packet)
            except BlockingIOError:
                self.dropped["full"] += 1


def _on_the_line(packet: bytes) -> int:
    """Bytes of a burst when it is cut up: every packet has the headers."""
    size, _, headers, each = len(packet) - _HEAD, *_VNET.unpack_from(packet)
    if not each or size <= headers:
        return size
    return size + (-(-(size - headers) // each) - 1) * headers


# --- The members ---


def pcp(
    rank: int,
    world: int,
    port: int,
    streams: Any = 1,
    *,
    arranged: bool = False,
    **options: Any,
) -> Reduce:
    """pcp's all_reduce; `compression=` and the like are handed on."""
    from pcp.runtime.communicator.communicator import Communicator

    comm = Communicator.connect(
        f"{address(0)}:{port}",
        rank=rank,
        world_size=world,
        silence=60.0,
        streams=streams,
    )
    if arranged:
        topology = comm.optimize_topology()
        if rank == 0:
            print(f"ring {' > '.join(map(str, topology.order))}", flush=True)
    return lambda array: comm.all_reduce(array, timeout=300, **options)


def gloo(rank: int, world: int, port: int) -> Reduce:
    """torch.distributed's."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = f"pcpwan{rank}"
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{address(0)}:{port}",
        rank=rank,
        world_size=world,
    )
    return lambda array: dist.all_reduce(torch.from_numpy(array))


def contestant(name: str, rank: int, world: int, port: int) -> Reduce:
    """What reduces an array in place."""
    kind, _, streams = name.partition("/")
    if kind == "gloo":
        return gloo(rank, world, port)
    if kind in ("pccl", "pccl-int8"):
        from pccl_group import pccl

        at = f"{address(0)}:{port}"
        return pccl(at, rank, world, int(streams or 1), int8=kind == "pccl-int8")
    options: dict[str, dict[str, Any]] = {
        "int8": {"compression": "int8"},
        "ring": {"arranged": True},
        "direct": {"algorithm": f"two_level:{world}"},
        "halving": {"algorithm": "halving_doubling"},
    }
    more = options.get(kind, {})
    return pcp(rank, world, port, int(streams) if streams else "auto", **more)


def starting_line(options: argparse.Namespace) -> Callable[[], None]:
    """Waits until all members have come, without the network that is measured."""
    turns = np.memmap(options.line, np.int64, "r+", shape=(options.world,))

    def wait() -> None:
        turns[options.rank] += 1
        while turns.min() < turns[options.rank]:
            time.sleep(2e-4)

    return wait


def member(options: argparse.Namespace) -> None:
    """One member: every contestant in turn, so that they share the weather."""
    rank, world = options.rank, options.world
    if options.undisturbed:
        before_others(1)
    together = starting_line(options)
    calls = {
        name: contestant(name, rank, world, _PORT + place)
        for place, name in enumerate(options.only)
    }
    for mib in options.sizes:
        array = np.empty(int(mib * (1 << 18)), np.float32)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(options.rounds + 1):  # the first opens congestion windows
            for name, call in calls.items():
                array.fill(rank + 1)
                together()
                start = time.perf_counter()
                call(array)
                times[name].append(time.perf_counter() - start)
                if not np.allclose(array, world * (world + 1) / 2, rtol=0.02):
                    raise SystemExit(f"{name} does not add up")
        if rank == 0:
            report(mib, world, {name: took[1:] for name, took in times.items()})


def report(mib: float, world: int, times: dict[str, list[float]]) -> None:
    """One line for each contestant."""
    bits = 8 * mib * (1 << 20) * 2 * (world - 1) / world
    for name, took in times.items():
        median = statistics.median(took)
        print(
            f"{mib:>6g} MiB  {name:<14}{median:>8.3f} s  "
            f"(best {min(took):.3f}){bits / median / 1e9:>8.3f} Gbit/s",
            flush=True,
        )


# --- Both ---


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--rate", type=float, default=1e9, help="bits per second")
    parser.add_argument("--rtt", type=float, default=0.1, help="seconds")
    parser.add_argument("--loss", type=float, default=0.0, help="probability")
    parser.add_argument("--slow", type=_slow, nargs="*", default=[])
    parser.add_argument("--sizes", type=float, nargs="+", default=[16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=CONTESTANTS)
    parser.add_argument(
        "--without-root", action="store_true", help="members may not force buffers"
    )
    parser.add_argument(
        "--undisturbed", action="store_true", help="before all other programs"
    )
    parser.add_argument("--limit", type=float, default=600, help="seconds in all")
    parser.add_argument("--rank", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--line", help=argparse.SUPPRESS)
    return parser.parse_args()


def _slow(text: str) -> Slow:
    source, target, factor = text.split(":")
    return int(source), int(target), float(factor)


def main() -> int:
    """Lay the network, start the members in it, carry their packets."""
    options = parsed()
    if options.rank >= 0:
        member(options)
        return 0
    if not can_emulate():
        print("skipped: needs root, ip(8) and /dev/net/tun")
        return 0
    deadline = time.monotonic() + options.limit
    with ExitStack() as stack:
        # Losses fall on single packets, so then the network has to see them all.
        offload = not options.loss
        spaces = [
            stack.enter_context(namespace(r, offload)) for r in range(options.world)
        ]
        network = Network(
            [tun for _, tun in spaces],
            options.rate,
            options.rtt,
            options.loss,
            options.slow,
        )
        line = stack.enter_context(tempfile.NamedTemporaryFile())
        line.write(bytes(8 * options.world))
        line.flush()
        members = []
        for rank, (name, _) in enumerate(spaces):
            inside = ["ip", "netns", "exec", name]
            inside += _WITHOUT_ROOT if options.without_root else []
            inside += [sys.executable, *sys.argv]
            inside += ["--line", line.name, "--rank", str(rank)]
            process = subprocess.Popen(inside)
            members.append(process)
            stack.callback(end, process)
        # A network is not slowed by what else its computers do.
        before_others(5)
        network.run(
            lambda: (
                time.monotonic() > deadline
                or all(process.poll() is not None for process in members)
                or any(process.poll() for process in members)
            )
        )
        print(f"packets dropped: {network.dropped}")
        ends = [process.poll() for process in members]
        if None in ends:
            print(f"rank {ends.index(None)} did not finish", file=sys.stderr)
        return int(any(end != 0 for end in ends))


def end(process: subprocess.Popen[bytes]) -> None:
    """Leave no process behind."""
    if process.poll() is None:
        process.kill()
    process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
