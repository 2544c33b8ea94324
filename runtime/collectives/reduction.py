"""The arithmetic of collectives: reductions, their types and their order.

A reduction is done in the accumulation type of its element type: itself for
everything but floats narrower than 32 bits, which are added up in float32 and
rounded once at the end. `mean` is the sum divided by the number of members, in
the accumulation type; integers have none.

The order is fixed, so that all members hold the same bits:
* up to `EAGER_BYTES` every member reduces ranks 0, 1, 2, ... in that order; among
  more than `FEW_MEMBERS` a binomial tree does (`schedule`);
* above, chunk `c` of the array (`bounds`) is reduced along the ring, in the
  order c+1, c+2, ..., c (modulo the number of members), or in the order of the
  members behind c in another ring (`Communicator.ring_order`);
* unless there are so many members that the ring's steps would be small: then by
  halving and doubling (`schedule`), within the limits of `declared`;
* members that are far from each other (`Distance`) do so, too, unless the ring's steps
  would be so large that their round trips do not count.
A call that names its algorithm gets the order of that algorithm.
"""

import itertools
import threading
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError, check_name, nearest
from pcp.wire import EAGER_BYTES, FEW_MEMBERS, Distance

LARGE_WORLD = 8
"""Beyond so many members chunks are small, and a schedule of few steps is faster."""
_SMALL_CHUNK = 16 << 10

_UFUNCS = {
    "sum": np.add,
    "mean": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "prod": np.multiply,
}
_FLOAT8 = frozenset(
    f"float8_{kind}"
    for kind in (
        "e3m4",
        "e4m3",
        "e4m3b11fnuz",
        "e4m3fn",
        "e4m3fnuz",
        "e5m2",
        "e5m2fnuz",
    )
)
_NARROW = frozenset({"float16", "bfloat16", *_FLOAT8})
_FLOATS = _NARROW | {"float32", "float64"}
_NAMES = frozenset(
    {
        *_FLOATS,
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "complex64",
        "complex128",
    }
)


class _Quiet(threading.local):
    """Runs functions of numpy without warnings of overflow, division and no numbers.

    As `np.errstate`, which takes longer than adding small arrays; one a thread, since a
    context is entered by one at a time.
    """

    def __init__(self) -> None:
        self.run = Context().run
        self.run(np.seterr, all="ignore")


_QUIET = _Quiet()


@dataclass(frozen=True)
class Reduction:
    """One reduction of one element type."""

    op: str
    dtype: np.dtype
    accumulator: np.dtype

    @staticmethod
    def of(op: str, dtype: np.dtype) -> "Reduction":
        """The reduction `op` of `dtype`; UsageError lists the ones there are."""
        check_name(f"a reduction ({', '.join(_UFUNCS)})", op)
        return Reduction._of(op, dtype)

    @staticmethod
    @cache
    def _of(op: str, dtype: np.dtype) -> "Reduction":
        name = dtype.name
        if op not in _UFUNCS:
            raise UsageError(
                f"unknown reduction {op!r}; there are {', '.join(_UFUNCS)}."
                f"{nearest(op, _UFUNCS)}"
            )
        if name not in _NAMES:
            raise UsageError(f"arrays of {name} cannot be reduced; convert them first")
        if op == "mean" and name not in _FLOATS and not name.startswith("complex"):
            raise UsageError(
                f"the mean of {name} is not {name}; reduce a floating-point copy or "
                f"use sum"
            )
        if op in ("max", "min") and name.startswith("complex"):
            raise UsageError(f"{name} has no order: max and min do not exist")
        wide = np.dtype(np.float32) if name in _NARROW else dtype
        return Reduction(op, dtype, wide)

    def widen(self, array: NDArray) -> NDArray:
        """`array` in the accumulation type; itself when that is its type."""
        if self.accumulator == self.dtype:
            return array
        return array.astype(self.accumulator)

    def combine(self, left: NDArray, right: NDArray, out: NDArray) -> None:
        """`out = left (op) right`, elementwise."""
        _QUIET.run(_UFUNCS[self.op], left, right, out=out)

    def finish(self, total: NDArray, members: int, out: NDArray) -> None:
        """The result of `members` contributions, rounded into `out`."""
        if out is total and self.op != "mean":
            return
        if self.op == "mean":
            _QUIET.run(np.divide, total, total.dtype.type(members), out=total)
        if out is not total:
            _QUIET.run(np.copyto, out, total, casting="unsafe")

    def sequential(
        self, parts: Sequence[NDArray], out: NDArray | None = None
    ) -> NDArray:
        """The reduction of `parts` in the order given: in `out`, or a new array.

        `out` shares no memory with them.
        """
        first, *others = parts
        if out is None:
            out = np.empty(first.shape, self.dtype)
        wide = self.accumulator != self.dtype
        total = np.empty(first.shape, self.accumulator) if wide else out
        left = self.widen(first)
        for part in others:
            self.combine(left, self.widen(part), total)
            left = total
        if not others:
            np.copyto(total, left)
        self.finish(total, len(parts), out)
        return out


def trimmed_mean(parts: NDArray) -> NDArray:
    """The mean over the first dimension without the extremes, number by number.

    At either end as many are left out as `trimmed` says; what is no number is the
    largest. No member among so few moves the result beyond what the others say.
    """
    reduction = Reduction.of("mean", parts.dtype)
    ordered = np.sort(reduction.widen(parts), axis=0)
    away = trimmed(len(parts))
    middle = list(ordered[away : len(parts) - away])
    return reduction.sequential(middle).astype(parts.dtype)


def trimmed(members: int) -> int:
    """How many of so many members a trimmed mean leaves out at either end."""
    return max(1, members // 4) if members > 2 else 0


def bounds(count: int, parts: int) -> list[tuple[int, int]]:
    """`parts` consecutive ranges over `count`; the first ones are longer by one."""
    base, extra = divmod(count, parts)
    edges = [i * base + min(i, extra) for i in range(parts + 1)]
    return list(itertools.pairwise(edges))


def declared(nbytes: int, members: int, distance: Distance | None = None) -> str:
    """The algorithm of an all_reduce of this size that does not name one.

    Runs and the simulation of runs ask here. Without a distance members are near.
    """
    if members == 1:
        return "eager"
    if nbytes <= EAGER_BYTES:
        return "eager" if members <= FEW_MEMBERS else "tree"
    if members > LARGE_WORLD and nbytes <= members * _SMALL_CHUNK:
        return "halving_doubling"
    # Of two members either has one step each way.
    if distance is not None and members > 2 and distance.small(nbytes / members):
        return "halving_doubling"
    return "ring"
