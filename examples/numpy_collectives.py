"""Roots, groups, uneven parts, algorithms and compression on numpy arrays.

python examples/numpy_collectives.py
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pcp.runtime import Communicator, ErrorFeedback
from pcp.runtime.collectives.schedule import simulate

WORLD = 4


def gradient(rank: int) -> np.ndarray:
    """What a member contributes."""
    return np.random.default_rng(rank).normal(size=100_000).astype(np.float32)


def member(comm: Communicator) -> list[str]:
    """What each process of a real group would do."""
    lines = []
    for name in ("halving_doubling", "tree", "two_level:2"):
        total = comm.all_reduce(gradient(comm.rank), algorithm=name)
        known = simulate(name, [gradient(rank) for rank in range(WORLD)])[0]
        lines.append(f"{name}: predicted to the bit: {np.array_equal(total, known)}")
    exact = comm.all_reduce(gradient(comm.rank), "mean")
    memory = ErrorFeedback()
    squeezed = comm.all_reduce(
        gradient(comm.rank), "mean", compression="int8", feedback=memory
    )
    lines.append(f"int8: off by {np.abs(squeezed - exact).max():.3f} at most")
    rows = comm.gather(np.full((comm.rank + 1, 2), comm.rank), root=0)
    mine = comm.scatter(rows, root=0, sizes=[4, 3, 2, 1] if comm.rank == 0 else None)
    lines.append(f"gathered at rank 0 and scattered again: {len(mine)} rows")
    pair = comm.group([comm.rank // 2 * 2, comm.rank // 2 * 2 + 1])
    assert pair is not None, "a member that names no group of its own gets none"
    with pair:
        lines.append(f"my pair: {pair.all_gather(np.array(comm.rank))}")
    parts = comm.exchange([np.full(comm.rank + to, to) for to in range(WORLD)])
    lines.append(f"elements from each: {[part.size for part in parts]}")
    return lines


def main() -> None:
    """The members here are threads; `Communicator.connect` joins processes."""
    members = Communicator.in_process(WORLD)
    with ThreadPoolExecutor(WORLD) as pool:
        for rank, lines in enumerate(pool.map(member, members)):
            print(f"rank {rank}", *lines, sep="\n  ")
    for comm in members:
        comm.close()


if __name__ == "__main__":
    main()
