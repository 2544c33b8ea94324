"""What members bring to a collective."""

import numpy as np
from numpy.typing import DTypeLike

LARGE = 40_013
"""Elements beyond the eager limit for every type, and divisible by nothing."""


def draw(rank: int, size: int, dtype: DTypeLike = "float32") -> np.ndarray:
    """A rank's values."""
    values = np.random.default_rng(100 + rank).normal(size=size) * 3
    dtype = np.dtype(dtype)
    if dtype.kind == "c":
        values = values + 1j * values[::-1]
    if dtype.kind == "u":
        values = np.abs(values)
    return values.astype(dtype)
