"""Allocations as IREE lays them out: sizes that iree-compile printed, and closed forms.

`--mlir-print-ir-before=iree-stream-layout-slices` shows the buffers of an allocation,
and the module that comes out its size.
"""

from itertools import pairwise

import numpy as np

from pcp.passes.analysis.packing import ALIGNMENT, Life, aligned, packed

# The transient buffers of the gradient of benchmarks/autodiff_programs.py's mlp, as
# IREE 3.13 printed them, and what it allocated.
MLP = """0 20 131072, 0 20 131072, 0 20 131072, 0 20 131072, 1 21 131072, 2 17 131072,
2 17 131072, 2 17 131072, 2 17 131072, 3 18 131072, 4 5 5120, 5 7 5120, 5 15 5120,
6 15 512, 7 9 5120, 8 11 512, 8 12 512, 9 10 4, 11 14 512, 13 15 5120, 15 18 5120,
17 21 131072, 20 23 131072"""
MLP_BYTES = 1462272


def test_an_allocation_is_as_large_as_irees() -> None:
    rows = [list(map(int, row.split())) for row in MLP.split(",")]
    assert packed(Life(size, a, b) for a, b, size in rows) == MLP_BYTES


def test_a_gap_that_is_too_small_stays_open() -> None:
    """Between two that live on, 64 bytes are free; 128 go behind them."""
    lives = [Life(64, 0, 9), Life(64, 0, 1), Life(64, 0, 9), Life(128, 2, 3)]
    assert packed(lives) == 5 * 64
    assert packed([*lives[:3], Life(64, 2, 3)]) == 3 * 64


def test_the_smallest_gap_is_taken() -> None:
    lives = [Life(64 * n, 0, 9 if i % 2 else 1) for i, n in enumerate((3, 1, 2, 1))]
    assert packed([*lives, Life(128, 2, 9), Life(192, 2, 9)]) == 7 * 64


def test_neighbours_in_time_do_not_share_and_an_allocation_is_aligned() -> None:
    assert packed([Life(100, 0, 1), Life(100, 1, 2)]) == 256
    assert packed([Life(100, 0, 1), Life(100, 2, 3)]) == 128
    assert packed([]) == 0
    assert (aligned(1), aligned(64), aligned(65)) == (ALIGNMENT, 64, 128)


def test_it_is_never_below_what_is_alive_at_once_nor_above_the_sum() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        starts = np.sort(random.integers(0, 20, 30))
        lives = [
            Life(int(random.integers(1, 999)), int(a), int(a + random.integers(0, 8)))
            for a in starts
        ]
        alive = [
            sum(aligned(x.size) for x in lives if x.first <= at <= x.last)
            for at in range(30)
        ]
        total = sum(aligned(x.size) for x in lives)
        assert max(alive) <= packed(lives) <= total


def test_one_at_a_time_takes_the_largest() -> None:
    lives = [Life(64 * n, n, n) for n in range(1, 9)]
    assert all(a.last < b.first for a, b in pairwise(lives))
    assert packed(lives) == 8 * 64
