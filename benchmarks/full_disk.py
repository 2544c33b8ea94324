"""A run whose disk is full for a minute.

    python benchmarks/full_disk.py --seconds 60     # as root: it mounts a small disk

A shepherd, a process with its folder on a disk of 16 MiB of its own, and two workers.
The disk is filled, and emptied again after so long. Printed are the rounds that were
committed before, meanwhile and behind it; no round may be missing from the ledger, none
be made twice, and both workers must have been there all the time.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.servers.processes import Process, free_port
from helpers.worlds.training_runs import start_worker

from pcp.training.storage.ledger import check, read


def main() -> None:
    """Print the rounds, and check the ledger."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        disk = Path(name)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=16m", "pcp", name], check=True
        )
        stack.callback(subprocess.run, ["umount", "-l", name], check=True)
        port = free_port()
        keys = '{"outer_loop_steps": 1000000, "max_epochs": 1000000}'
        shepherd = Process("helpers.worlds.shepherd_process", disk, port, 2, keys)
        stack.callback(shepherd.kill)
        crew = [start_worker(port, name, 0.02) for name in "ab"]
        ledger = disk / "run" / "ledger.jsonl"
        reach(ledger, 20)
        filler = disk / "filler"
        with suppress(OSError), open(filler, "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        before = committed(ledger)
        time.sleep(seconds)
        meanwhile = committed(ledger)
        filler.unlink()
        began = time.monotonic()
        reach(ledger, meanwhile + 20)
        took = time.monotonic() - began
        assert all(worker.is_alive() for worker in crew), "a worker has left"
        shepherd.kill()
        records = read(ledger)[0]
        commits = [r for r in records if r["kind"] == "commit"]
        numbers = [r["round"] for r in commits]
        assert numbers == list(range(1, len(numbers) + 1)), "a round is lost"
        assert sum(r["kind"] == "joined" for r in records) == 2, "one came again"
        check(ledger)
    print(
        f"{before} rounds, the disk is full; {meanwhile - before} in the next "
        f"{seconds:.0f} s; there is room, and 20 more in {took:.1f} s; "
        f"{len(numbers)} in the ledger, none lost, no worker left"
    )


def committed(ledger: Path) -> int:
    """Rounds in the ledger."""
    if not ledger.exists():
        return 0
    return sum(r["kind"] == "commit" for r in read(ledger)[0])


def reach(ledger: Path, rounds: int) -> None:
    """Wait for so many."""
    until = time.monotonic() + 60
    while committed(ledger) < rounds:
        assert time.monotonic() < until, "the run does not go on"
        time.sleep(0.1)


if __name__ == "__main__":
    main()
