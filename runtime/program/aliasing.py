"""Aliasing: tensors of a device that lie in the same memory.

A compiled function may return one buffer twice, or that of an argument: IREE leaves
out a copy that its program does not need. If one of the two arrays were donated later,
a call would write over the other. So the executor copies a result that overlaps another
or an argument; this file finds the overlaps.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pcp.errors import RuntimeFault
from pcp.runtime.program.devices import mappable

#: An allocation, and the first byte and the one behind the last in it.
Extent = tuple[int, int, int]

#: How IREE writes where a buffer lies in its allocation.
_PLACE = re.compile(r"at offset (\d+) into (\d+)")


def extent(view: Any) -> Extent:
    """The extent of a buffer view.

    The extent is exact where memory has an address here. On other devices allocations
    of one size count as one: separate tensors may seem to overlap, never the reverse.
    """
    buffer, size = view.get_buffer(), view.byte_length
    if mappable(buffer):
        return (0, *_addresses(buffer, size))
    return place(str(buffer), size)


def place(description: str, size: int) -> Extent:
    """The extent of `size` bytes of a buffer that IREE describes like this."""
    found = _PLACE.search(description)
    if found is None:
        raise RuntimeFault(f"a buffer's place is not known: {description}")
    offset, allocation = map(int, found.groups())
    return allocation, offset, offset + size


def _addresses(buffer: Any, size: int) -> tuple[int, int]:
    if not size:
        return 0, 0
    bytes_ = np.frombuffer(buffer.map(), np.uint8)
    start = int(bytes_.__array_interface__["data"][0])
    return start, start + size


def overlapping(extents: Sequence[Extent], taken: Iterable[Extent] = ()) -> list[int]:
    """The positions of extents that overlap one in front of them, or a taken one.

    >>> overlapping([(0, 8, 16), (0, 0, 8), (0, 12, 14)], taken=[(0, 4, 6)])
    [1, 2]
    """
    used: dict[int, _Ranges] = defaultdict(_Ranges)
    for allocation, start, end in taken:
        used[allocation].add(start, end)
    return [
        i
        for i, (allocation, start, end) in enumerate(extents)
        if used[allocation].add(start, end)
    ]


class Overlaps:
    """Which results of a function overlap others or arguments, call by call.

    What a straight function does is the same in each call (the manifest names these),
    so a result of it that lay apart once lies apart always. The others are looked at
    for some calls, since an extent may seem to overlap; then they count as overlapping.
    """

    CALLS = 4

    def __init__(self, straight: bool) -> None:
        self._straight = straight
        self._known: dict[tuple[bool, ...], tuple[int, list[int]]] = {}
        """By which arguments are kept: how often looked at, and what may overlap."""

    def among(self, results: Sequence[Any], kept: Sequence[Any]) -> list[int]:
        """The results' positions; `kept` has the view of each argument that lives on.

        Both are buffer views; None stands for an argument that ends with the call.
        """
        arguments = tuple(view is None for view in kept)
        calls, may = self._known.get(arguments, (0, [*range(len(results))]))
        if calls >= self.CALLS or not may:
            return may
        taken = [extent(view) for view in kept if view is not None]
        overlap = overlapping([extent(view) for view in results], taken)
        if self._straight:
            overlap = sorted({*overlap} & {*may})
            self._known[arguments] = calls + 1, overlap
        return overlap


class _Ranges:
    """A set of bytes: ranges that do not touch each other's, in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> bool:
        """Add a range; whether some of its bytes were in the set already."""
        if start == end:
            return False
        first = bisect_right(self._ends, start)
        behind = bisect_left(self._starts, end)
        joined = slice(first, behind)
        self._starts[joined] = [min([start, *self._starts[joined]])]
        self._ends[joined] = [max([end, *self._ends[joined]])]
        return first < behind
