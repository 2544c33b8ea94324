"""What data cost: the digest of all of them, and the time that steps wait for them.

    python benchmarks/data.py digest [--mebibytes 1024]
    python benchmarks/data.py wait RUN

`digest` writes a file and hashes it, from the page cache, by all processors and by one,
and opens it again by the tree that is kept beside it. A speed in a processor's own time
is what a machine that does nothing else has of each processor. `wait` reads the metrics
of a run (`pcp train X.json --run RUN`).
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np

from pcp.training.data import digest
from pcp.training.observe.metrics import read
from pcp.training.storage.round_record import data_wait_share
from pcp.training.storage.run_folder import METRICS

_BLOCK = 1 << 24


def write(path: Path, size: int) -> None:
    """Random bytes, the same in every block: they are hashed, not compressed."""
    block = np.random.default_rng(0).bytes(_BLOCK)
    with open(path, "wb") as out:
        for _ in range(0, size, _BLOCK):
            out.write(block)


def timed(path: Path, dtype: str | None = None) -> tuple[float, float]:
    """Seconds of a digest, and those of all processors for it."""
    began, used = time.perf_counter(), time.process_time()
    digest.of_path(path, dtype)
    return time.perf_counter() - began, time.process_time() - used


def measure(size: int) -> None:
    """Print the speeds of a file of this size; the best of three."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data")
        write(path, size)

        def best(dtype: str | None = None) -> str:
            seconds = []
            for _ in range(3):
                digest.kept_at(path).unlink(missing_ok=True)
                seconds.append(timed(path, dtype))
            wall, used = map(min, zip(*seconds, strict=True))
            each = f"{size / used / 1e9:.2f} GB/s in a processor's own time"
            return f"{size / wall / 1e9:.2f} GB/s, {each}"

        print(f"{size >> 20} MiB, {os.cpu_count()} processors, load {os.getloadavg()}")
        print(f"{'all processors':<28}{best()}")
        print(f"{'and the range of u16 ids':<28}{best('<u2')}")
        with mock.patch.object(digest, "_MOST_THREADS", 1):
            print(f"{'one processor':<28}{best()}")
        print(f"{'by the kept tree':<28}{1e3 * timed(path)[0]:.1f} ms")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("digest")
    speed.add_argument("--mebibytes", type=int, default=1024)
    waiting = commands.add_parser("wait")
    waiting.add_argument("run", type=Path)
    flags = parser.parse_args()
    if flags.command == "digest":
        measure(flags.mebibytes << 20)
        return
    rounds, _ = read(flags.run / METRICS)
    print(f"waited for data: {data_wait_share(rounds):.3%} of the inner steps' time")


if __name__ == "__main__":
    main()
