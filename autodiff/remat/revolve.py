"""Revolve: the fewest recomputed steps of a chain within a number of checkpoints.

Griewank and Walther, Algorithm 799 (ACM TOMS 26(1), 2000): a chain of n equal steps
is reversed with s stored states (the input is one of them) and
t(n, s) = r n - C(s + r, s + 1) extra steps, where r is the least number with
C(s + r, s) >= n. No schedule does with fewer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb
from typing import Literal

from pcp.errors import PassError


@dataclass(frozen=True)
class Action:
    """One move: `advance` from state `start` to `end`, `store` or `free` state
    `start`, or `reverse` the step that begins at state `start`.
    """

    kind: Literal["advance", "store", "free", "reverse"]
    start: int
    end: int


def extra_steps(steps: int, slots: int) -> int:
    """t(n, s): the steps that an optimal schedule runs besides the reversed ones."""
    _check(steps, slots)
    repeats = 0
    while comb(slots + repeats, slots) < steps:
        repeats += 1
    return repeats * steps - comb(slots + repeats, slots + 1)


def revolve(steps: int, slots: int) -> list[Action]:
    """An optimal schedule; state 0 counts as stored before the first action.

    Its advances sum to `extra_steps(steps, slots)`; reversing step i is not counted
    (it runs the step once more and takes its derivative at once).
    """
    _check(steps, slots)
    return list(_reverse(0, steps, slots))


def _reverse(start: int, end: int, slots: int) -> Iterator[Action]:
    """Reverse the steps [start, end) from the stored state `start`."""
    if slots == 1 or end - start == 1:
        for step in reversed(range(start, end)):
            if step > start:
                yield Action("advance", start, step)
            yield Action("reverse", step, step + 1)
        return
    middle = start + _split(end - start, slots)
    yield Action("advance", start, middle)
    yield Action("store", middle, middle)
    yield from _reverse(middle, end, slots - 1)
    yield Action("free", middle, middle)
    yield from _reverse(start, middle, slots)


def _split(steps: int, slots: int) -> int:
    """How far to the next checkpoint: the least k of the best k + t + t."""

    def total(k: int) -> int:
        return k + extra_steps(steps - k, slots - 1) + extra_steps(k, slots)

    return min(range(1, steps), key=total)


def _check(steps: int, slots: int) -> None:
    if steps < 1 or slots < 1:
        raise PassError(
            f"a chain of {steps} steps with {slots} checkpoints cannot be reversed: "
            "both must be at least 1 (the input of the chain is a checkpoint)"
        )
