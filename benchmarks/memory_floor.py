"""What an all-reduce through memory cannot do without, between two processes.

    python benchmarks/memory_floor.py [--sizes 1 8 64] [--rounds 20]

Loops over shared memory that do nothing but copy and add, wait for each other by
watching a counter, and agree on nothing but that both are done:

    redo       sums are kept beside the array until both are done, as `in_place_reduce`
               does: own half copied in, other half added up, all of it copied back
    undo       the array is copied away and overwritten: each adds up all of it
    straight   as `zero_copy_reduce` does: the array is where the other can read it,
               each adds up one half and writes it into the results of both
    copy       one copy of the array

Gloo's all-reduce takes turns with them. Medians in ms, and Gloo's time over it. Needs
Linux on x86, whose processors show stores in order, and torch.
"""

import argparse
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

MIB = 1 << 20
PIECE = 512 << 10
"""Bytes between two looks at the other's counter."""


class Pair:
    """This process' memory and counter, and the other's; room for both's results."""

    def __init__(self, memory: list[mmap.mmap], counters: mmap.mmap, rank: int) -> None:
        self.mine, self.theirs, self.result, self.their_result = (
            np.frombuffer(memory[i], np.float32)
            for i in (rank, 1 - rank, 2 + rank, 3 - rank)
        )
        self.rank = rank
        self._counters = np.frombuffer(counters, np.int64)[:: mmap.PAGESIZE // 8]
        self._turn = 0

    def meet(self) -> None:
        """Both have come this far."""
        self._turn += 1
        self._counters[self.rank] = self._turn
        while self._counters[1 - self.rank] < self._turn:
            pass

    def redo(self, array: np.ndarray) -> np.ndarray:
        """See the module."""
        half, step = array.size // 2, PIECE // 4
        own, other = self.rank * half, (1 - self.rank) * half
        for at in range(0, half, step):
            away = slice(other + at, other + min(at + step, half))
            here = slice(own + at, own + min(at + step, half))
            np.copyto(self.mine[away], array[away])
            self.meet()
            np.add(array[here], self.theirs[here], out=self.mine[here])
        self.meet()
        for start, memory in ((own, self.mine), (other, self.theirs)):
            np.copyto(array[start : start + half], memory[start : start + half])
        self.meet()
        return array

    def undo(self, array: np.ndarray) -> np.ndarray:
        """See the module."""
        for at in range(0, array.size, PIECE // 4):
            span = slice(at, at + PIECE // 4)
            np.copyto(self.mine[: array.size][span], array[span])
            self.meet()
            np.add(array[span], self.theirs[: array.size][span], out=array[span])
        self.meet()
        return array

    def straight(self, array: np.ndarray) -> np.ndarray:
        """See the module; `array` is the beginning of `mine`."""
        half, step = array.size // 2, PIECE // 4
        own = self.rank * half
        for at in range(own, own + half, step):
            here = slice(at, min(at + step, own + half))
            np.add(array[here], self.theirs[here], out=self.result[here])
            np.copyto(self.their_result[here], self.result[here])
        self.meet()
        return self.result[: array.size]

    def copy(self, array: np.ndarray) -> np.ndarray:
        """See the module."""
        np.copyto(self.mine[: array.size], array)
        return array


def measure(pair: Pair, calls: dict[str, Callable], mib: int, rounds: int) -> dict:
    """Median seconds of each call, which take turns; sums are looked at."""
    count = mib * MIB // 4
    arrays = {
        name: pair.mine[:count] if name == "straight" else np.empty(count, np.float32)
        for name in calls
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            arrays[name].fill(pair.rank + 1)
            pair.meet()
            began = time.perf_counter()
            found = call(arrays[name])
            seconds[name].append(time.perf_counter() - began)
            expected = pair.rank + 1 if name == "copy" else 3
            if not np.all(found == expected):
                raise SystemExit(f"{name}: a wrong sum of {mib} MiB")
            pair.meet()  # it was looked at before the other writes there again
    return {name: statistics.median(times) for name, times in seconds.items()}


def member(pair: Pair, options: argparse.Namespace, store: str) -> None:
    """One of the two processes; rank 0 prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=pair.rank, world_size=2
    )

    def gloo(array: np.ndarray) -> np.ndarray:
        dist.all_reduce(torch.from_numpy(array))
        return array

    calls = {
        "gloo": gloo,
        "redo": pair.redo,
        "undo": pair.undo,
        "straight": pair.straight,
        "copy": pair.copy,
    }
    for mib in options.sizes:
        times = measure(pair, calls, mib, options.rounds)
        if pair.rank == 0:
            cells = (
                f"{name} {s * 1e3:.2f} ({times['gloo'] / s:.2f})"
                for name, s in times.items()
            )
            print(f"{mib:>4} MiB  " + "   ".join(cells), flush=True)
    dist.destroy_process_group()


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(
        description="The floor under reductions through memory."
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    memory = [mmap.mmap(-1, max(options.sizes) * MIB) for _ in range(4)]
    for piece in memory:
        np.frombuffer(piece, np.uint8).fill(0)
    counters = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                member(Pair(memory, counters, 1), options, store)
                code = 0
            finally:
                os._exit(code)
        member(Pair(memory, counters, 0), options, store)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    sys.exit(main())
