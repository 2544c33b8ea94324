"""What tests of reductions through one machine's memory share."""

import ml_dtypes
import numpy as np
import pytest
from helpers.present import present

from pcp.runtime.collectives.shared_memory_reduce import ThroughMemory
from pcp.runtime.collectives.shared_scratch import SharedScratch
from pcp.runtime.communicator.communicator import Communicator

LARGE = 700_001
"""Elements of float32: the members share the work, by chunks."""
SMALL = 100_003
"""Of so few every member reduces all."""
CASES = [
    ("sum", np.float32, LARGE),
    ("sum", np.float32, 3_000_017),
    ("mean", np.float64, 40_001),
    ("max", ml_dtypes.bfloat16, 300_007),
    ("mean", ml_dtypes.bfloat16, 600_000),
    ("sum", np.float16, 66_000),
    ("sum", np.int8, 70_000),
    ("sum", np.bool_, 65_537),
    ("prod", np.complex64, 20_000),
    ("min", np.float32, 1 << 14),
    ("mean", np.float16, 262_145),
    ("sum", np.float32, 131_072),
]
"""Reductions, types and numbers of elements."""


def draw(rank: int, count: int, dtype: type = np.float32) -> np.ndarray:
    """A member's array, the same each time."""
    return (9 * np.random.default_rng(rank).standard_normal(count)).astype(dtype)


def shared_scratch(comm: Communicator) -> SharedScratch:
    """The memory that a member shares with the others of its machine."""
    return present(comm._context.shared_scratch)


def ways_of(
    monkeypatch: pytest.MonkeyPatch, kind: type[ThroughMemory]
) -> list[str | None]:
    """How each operation of a kind went, as it ends."""
    seen: list[str | None] = []
    plain = kind.release

    def release(self: ThroughMemory) -> None:
        seen.append(self._through)
        plain(self)

    monkeypatch.setattr(kind, "release", release)
    return seen
