"""A GPT's step over two processes: with buckets and overlap, with one, with neither.

    python benchmarks/overlap.py [--sizes 2 256 8 64] [--rounds 15]
                                 [--rate 1e9 --rtt 0.01] [--json FILE]

Compiles one data parallel training step four ways, keeps the processes of all of them
waiting, lets them step in turn, and prints the median over rounds of each way's time
over that of neither in the same round: other work on the machine hits all of them.
With `--rate` (bits per second) and `--rtt` (seconds) the processes are in network
namespaces of their own, with that network between them, which needs root.

Needs what `pip install -e '.[compiler,jax]'` installs.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.append(str(Path(__file__).parent))

import wan
from planner import OPTIMIZER, Members
from planner_models import gpt

from pcp.compiler import driver
from pcp.compiler.options import DEFAULT_BUCKET_BYTES, CompileOptions
from pcp.dialect.context import parse
from pcp.passes.collectives.overlap_collectives import usual_inflight

MEMBERS = 2

#: Way -> bytes of a bucket, collectives under way at most.
WAYS = {
    "both": (DEFAULT_BUCKET_BYTES, usual_inflight(0)),
    "buckets": (DEFAULT_BUCKET_BYTES, 0),
    "overlap": (0, usual_inflight(0)),
    "neither": (0, 0),
}


@dataclass(frozen=True)
class Where:
    """The address that the first process listens at, and how each is started."""

    address: str = "127.0.0.1:0"
    inside: tuple[tuple[str, ...], ...] = ()


@contextmanager
def network(rate: float | None, rtt: float) -> Iterator[Where]:
    """Two namespaces, and a thread that carries their packets; or this machine."""
    if rate is None:
        yield Where()
        return
    if not wan.can_emulate():
        raise SystemExit("--rate needs root, ip(8) and /dev/net/tun")
    with ExitStack() as stack:
        spaces = [
            stack.enter_context(wan.namespace(rank, offload=True))
            for rank in range(MEMBERS)
        ]
        over = threading.Event()
        carried = wan.Network([tun for _, tun in spaces], rate, rtt, loss=0.0)
        carrier = threading.Thread(target=_carry, args=(carried, over))
        carrier.start()
        try:
            inside = tuple(("ip", "netns", "exec", name) for name, _ in spaces)
            yield Where(f"{wan.address(0)}:0", inside)
        finally:
            over.set()
            carrier.join()


def _carry(carried: wan.Network, over: threading.Event) -> None:
    """A network is not slowed by what else its computers do."""
    wan.before_others(5)
    carried.run(over.is_set)


def build(text: str, way: str, folder: Path, cache: Path | None) -> Path:
    """The bundle of one way."""
    bucket_bytes, inflight = WAYS[way]
    options = CompileOptions(
        targets=("cpu:host",),
        mode="train",
        optimizer=OPTIMIZER,
        mesh=f"dp={MEMBERS}",
        bucket_bytes=bucket_bytes,
        inflight=inflight,
        cache=cache,
    )
    path = folder / f"{way}.pcp"
    driver.compile(parse(text), options).write(path)
    return path


def race(bundles: dict[str, Path], where: Where, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step of each way, round by round."""
    running: dict[str, Members] = {}
    found: dict[str, list[float]] = {way: [] for way in bundles}
    try:
        for way, bundle in bundles.items():
            running[way] = Members.start(bundle, MEMBERS, where.address, where.inside)
        for _ in range(rounds):
            for way, members in running.items():
                answers = members.step(3)
                found[way].append(max(a["seconds"] for a in answers))
    finally:
        for members in running.values():
            members.close()
    return found


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    sizes = ("LAYERS", "WIDTH", "BATCH", "TIME")
    parser.add_argument(
        "--sizes", type=int, nargs=4, default=[2, 256, 8, 64], metavar=sizes
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rate", type=float, help="bits per second")
    parser.add_argument("--rtt", type=float, default=0.01, help="seconds")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="keep what IREE makes"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    text = gpt(*flags.sizes)
    with tempfile.TemporaryDirectory(prefix="pcp-overlap-") as name:
        bundles = {way: build(text, way, Path(name), flags.cache) for way in WAYS}
        with network(flags.rate, flags.rtt) as where:
            found = race(bundles, where, flags.rounds)
    print(f"load {os.getloadavg()[0]:.1f}")
    for way, seconds in found.items():
        ratios = sorted(a / b for a, b in zip(seconds, found["neither"], strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        print(
            f"{way:8} {1e3 * median(seconds):9.2f} ms  {median(ratios):5.2f} of neither"
            f" ({low:.2f} to {high:.2f})"
        )
    if flags.json:
        flags.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
