"""Norms of arrays and of their differences, and a check for differences by rounding.

Norms are L2, summed in the arrays' own precision or float32, since they are compared
with limits, not bit by bit. A number that is not finite makes the norm not finite.
"""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from pcp.training.storage import nonfinite
from pcp.training.storage.island_parts import WHOLE, IslandParts, port_of

ROUNDING = 2.0**-18
"""The share of a tensor's norm by which members of different hardware may differ."""
STEP_ROUNDING = 2.0**-10
"""The share of the norm of its change: sums in another order."""


def norm(parts: Iterable[float]) -> float:
    """The norm of a whole from the norms of its parts."""
    return math.sqrt(sum(part * part for part in parts))


def share(size: float, holders: int) -> float:
    """A holder's share of a norm, as if the holders had equal parts."""
    return size / math.sqrt(holders)


def distance(new: np.ndarray, old: np.ndarray) -> float:
    """The norm of the change of an array."""
    with np.errstate(invalid="ignore", over="ignore"):
        return _norm(_wide(new) - _wide(old))


def length(array: np.ndarray) -> float:
    """The norm of an array."""
    return _norm(_wide(array))


def _norm(array: np.ndarray) -> float:
    flat = array.reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        return math.sqrt(float(np.dot(flat, flat)))


def change(
    new: Mapping[str, np.ndarray],
    old: Mapping[str, np.ndarray],
    parts: IslandParts = WHOLE,
) -> float:
    """The norm of the change of all float tensors of `new`; on a rank, its share."""
    return norm(
        share(distance(array, old[name]), parts.holders(port_of(name)))
        for name, array in new.items()
        if name in old and _floats(array)
    )


def spoiled(new: Mapping[str, np.ndarray], old: Mapping[str, np.ndarray]) -> list[str]:
    """The tensors of `new` with numbers that are not finite, where `old` has none."""
    found = nonfinite.tensors(new)
    return [n for n in found if n not in old or not nonfinite.tensors({n: old[n]})]


def within_rounding(
    theirs: Mapping[str, np.ndarray],
    mine: Mapping[str, np.ndarray],
    before: Mapping[str, np.ndarray],
) -> bool:
    """Whether tensors equal mine, but for the rounding of another device.

    `before` are those from which both were made. Integers must be equal. A value that
    is not finite equals any other such value, and no finite one.
    """
    return all(_rounded(array, mine[n], before.get(n)) for n, array in theirs.items())


def _rounded(theirs: np.ndarray, mine: np.ndarray, before: np.ndarray | None) -> bool:
    if not _floats(mine):
        return bool(np.array_equal(theirs, mine))
    size = _norm(_wide(mine))
    if not math.isfinite(size):
        return not math.isfinite(_norm(_wide(theirs)))
    step = size if before is None else distance(mine, before)
    return distance(theirs, mine) <= ROUNDING * size + STEP_ROUNDING * step


def _floats(array: np.ndarray) -> bool:
    return np.asarray(array).dtype.kind in "fV"


def _wide(array: np.ndarray) -> np.ndarray:
    given = np.asarray(array)
    return given if given.dtype.itemsize >= 4 else given.astype(np.float32)
