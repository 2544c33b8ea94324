"""Finding numbers that are not finite, and naming their place.

The place of a loss is its inner step, that of a state its tensors. The value guard
(`pcp.training.coordinator.guards.value_guard`) keeps them from counting.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pcp.errors import counted
from pcp.training.storage.round_record import Round

_NAMED = 3
"""The most tensors that a line names; it counts the others."""


def first(losses: Sequence[float], steps: int) -> tuple[int, float] | None:
    """The first inner step, counted from 1, with such a loss, and that loss.

    `losses` are those of all batches, in the order of the steps, each of which has as
    many.
    """
    for place, loss in enumerate(losses):
        if not math.isfinite(loss):
            return place * steps // len(losses) + 1, float(loss)
    return None


def same(a: float, b: float) -> bool:
    """Whether two numbers are equal; a NaN is equal to another."""
    return a == b or (math.isnan(a) and math.isnan(b))


def tensors(arrays: Mapping[str, Any]) -> list[str]:
    """The names of the tensors that hold such a number."""
    return [name for name, array in arrays.items() if not _finite(np.asarray(array))]


def listed(names: Sequence[str]) -> str:
    """The first of the names, and how many more there are."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def summary(rounds: Sequence[Round]) -> str | None:
    """How many rounds have such a loss, and the worker of the first; None: no round."""
    found = [record for record in rounds if not math.isfinite(record.loss)]
    if not found:
        return None
    workers = [
        f"worker {member.worker} at step {member.nonfinite_step}"
        for member in found[0].members
        if member.nonfinite_step is not None
    ]
    by = f" ({', '.join(workers)})" if workers else ""
    many = f"{len(found)} of {counted(len(rounds), 'round')}"
    return f"the loss of {many}, first in round {found[0].round}{by}"


def _finite(array: np.ndarray) -> bool:
    if array.dtype.kind in "biu":
        return True
    return bool(np.isfinite(array).all())
