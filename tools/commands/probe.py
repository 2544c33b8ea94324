"""`pcp probe`: measure devices and what connects them, and write a cluster file.

    pcp probe --devices 2 -o cluster.json

measures as many devices of this machine at the same time, a process each: the rate
of matrix products by type, the bandwidth of memory, the overhead of a dispatch, and
latency and bandwidth of every pair, and what a collective in a program costs besides.
Each device is measured once more alone: cores share memory and power. For several
machines start one on each, rank 0 first; it writes the file:

    pcp probe --world 2 --rank 0 --connect HOST:29600 -o cluster.json
    pcp probe --world 2 --rank 1 --connect HOST:29600
"""

import math
import re
import socket
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pcp import strict_json
from pcp.errors import ConfigError, UsageError
from pcp.runtime.program import host_processor
from pcp.tools.support import backends, processes
from pcp.tools.support.command import Parser, run
from pcp.tools.support.progress import doing

PROG = "pcp probe"
ADDRESS = "pcp probe: meeting at "


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG, description=__doc__, example="pcp probe --devices 2 -o cluster.json"
    )
    add = parser.add_argument
    add("-o", dest="output", metavar="FILE", help="default: cluster.json")
    add("--devices", type=int, default=1, metavar="N", help="of this machine")
    add("--target", default="cpu:host", help="as of pcp-compile; default cpu:host")
    add("--device", help="an IREE device; default: by the target, local-sync for CPUs")
    add("--memory", type=int, metavar="BYTES", help="of each device; default: measured")
    add("--seconds", type=float, default=0.5, help="for each measurement")
    add("--world", type=int, metavar="N", help="how many take part")
    add("--rank", type=int, metavar="R", help="which of them this one is")
    add("--connect", metavar="HOST:PORT", help="where rank 0 listens")
    add("--timeout", type=float, default=300.0, help="seconds for each wait")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    from pcp.compiler.targets import find

    find(flags.target)  # raises, naming the nearest
    alone = [flags.world, flags.rank, flags.connect]
    if any(x is not None for x in alone) and any(x is None for x in alone):
        raise UsageError("--world, --rank and --connect go together")
    if flags.devices < 1:
        raise UsageError(f"--devices {flags.devices}: at least one")
    if flags.rank is None and flags.devices > 1:
        _everyone(argv, flags)
    else:
        _member(flags)


# --- one process ---


def _member(flags: Namespace) -> None:
    """Measure with the others; rank 0 writes the file."""
    from pcp.runtime.communicator.communicator import Communicator
    from pcp.runtime.group.rendezvous import Rendezvous
    from pcp.tools.support import probe_measures as measures

    rank, size = flags.rank or 0, flags.world or 1
    if not 0 <= rank < size:
        raise UsageError(f"--rank {rank}: ranks are 0 to {size - 1}")
    meeting: Rendezvous | str = flags.connect or "127.0.0.1:0"
    if rank == 0:
        meeting = Rendezvous.listen(str(meeting))
        if size > 1:
            print(f"{ADDRESS}{meeting.address}", flush=True)
    with Communicator.connect(
        meeting, rank=rank, world_size=size, timeout=flags.timeout
    ) as world:
        device = flags.device or _device_of(flags.target)
        facts = _measure(world, flags.target, device, flags.seconds)
        everyone = _shared(world, facts)
        own = [f for f in everyone if f["host"] == facts["host"]]
        room = flags.memory or _memory(flags.target) // len(own)
        everyone = _shared(world, facts | {"memory": room})
        links = list(measures.links(world, flags.seconds))
        world.barrier(tag="done")
    if rank == 0:
        _write(Path(flags.output or "cluster.json"), everyone, links)


def _measure(world: Any, target: str, device: str, seconds: float) -> dict[str, Any]:
    """What one device does beside the others, what alone, and what exchanges cost."""
    from pcp.tools.support import probe_measures as measures

    facts: dict[str, Any] = {"target": target, "host": socket.gethostname()}
    hosts = [other["host"] for other in _shared(world, facts)]
    facts["target"] = _named(target, hosts)
    turns = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
    facts |= measures.device_facts(world, target, device, seconds, turns)
    if world.world_size > 1:
        facts |= measures.exchange(world, target, device, seconds, facts["membw"])
    return facts


def _named(target: str, hosts: Sequence[str]) -> str:
    """The target as a compiler is to take it, wherever that runs.

    Of several machines `cpu:host` is another processor on each: this one is named.
    """
    if target != backends.HOST or len(set(hosts)) == 1:
        return target
    if (own := host_processor.own()) is None:
        raise ConfigError(
            f"--target {target}: there are several machines, and pcp cannot name the "
            "processor of this one; say it by LLVM's name, as aarch64:neoverse-v2"
        )
    return own


def _shared(world: Any, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The facts of all members, in order of rank."""
    line = np.frombuffer(strict_json.dumps(facts).encode() + b"\n", np.uint8)
    gathered = world.all_gather(line, tag="facts")
    return [
        strict_json.parse(text) for text in gathered.tobytes().decode().splitlines()
    ]


def _device_of(target: str) -> str:
    from pcp.compiler.targets import find

    driver = find(target).driver
    return "local-sync" if driver == "local-task" else driver


def _memory(target: str) -> int:
    """Bytes of this machine's memory that are free now."""
    from pcp.compiler.targets import find

    if find(target).driver != "local-task":
        raise ConfigError(
            f"what a device of target {target} holds cannot be measured; say --memory"
        )
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    if found is None:
        raise ConfigError("this system does not tell its free memory; say --memory")
    return int(found[1]) << 10


def _write(
    path: Path, facts: list[dict[str, Any]], links: list[dict[str, Any]]
) -> None:
    """The cluster file, numbers rounded to what was measured of them."""
    from pcp.compiler.cluster import Cluster

    ordinals: dict[str, int] = {}
    devices = {}
    for rank, found in enumerate(facts):
        ordinal = ordinals.setdefault(found["host"], 0)
        ordinals[found["host"]] += 1
        devices[f"d{rank}"] = _rounded(found) | {"ordinal": ordinal}
    cluster = Cluster.model_validate(
        {
            "devices": devices,
            "links": [
                _rounded(link) | {"ends": [f"d{end}" for end in link["ends"]]}
                for link in links
            ],
        }
    )
    path.write_text(cluster.to_json())
    for name, device in cluster.devices.items():
        rates = ", ".join(f"{t} {v / 1e9:.1f}" for t, v in device.throughput.items())
        print(
            f"{name} on {device.host}: {rates} GFLOP/s; memory {device.memory >> 20} "
            f"MiB at {device.membw / 1e9:.1f} GB/s; {device.overhead_ns / 1e3:.1f} us "
            "a dispatch"
        )
        if alone := device.alone:
            rates = ", ".join(f"{t} {v / 1e9:.1f}" for t, v in alone.throughput.items())
            print(f"  alone: {rates} GFLOP/s; memory at {alone.membw / 1e9:.1f} GB/s")
        if device.exchange_ns:
            bandwidth = device.exchange_bw or math.inf
            print(
                f"  a collective: {device.exchange_ns / 1e3:.0f} us, "
                f"{bandwidth / 1e9:.2f} GB/s"
            )
    for link in cluster.links:
        print(
            f"{' - '.join(link.ends)}: {link.bandwidth / 1e9:.2f} GB/s, "
            f"{link.latency_ns / 1e3:.0f} us"
        )
    print(f"wrote {path}")


def _rounded(facts: dict[str, Any]) -> dict[str, Any]:
    """Floats to four digits, in dictionaries too."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: short(inner) for key, inner in value.items()}
        return float(f"{value:.4g}") if isinstance(value, float) else value

    return {key: short(value) for key, value in facts.items()}


# --- several of this machine ---


def _everyone(argv: Sequence[str], flags: Namespace) -> None:
    """A process for each device; all end when one fails."""
    command = ["probe", *argv, "--world", str(flags.devices)]

    def start(rank: int, address: str) -> processes.Process:
        return processes.start(command, rank, address)

    said: list[str] = []
    what = f"measuring {flags.devices} devices as {flags.target}"
    with (
        doing(what),
        processes.ranks(flags.devices, start, ADDRESS, said.append) as running,
    ):
        processes.wait(running)
    print(*said, sep="", end="")


if __name__ == "__main__":
    raise SystemExit(main())
