"""Collectives with a root: reduce, gather and scatter.

* `reduce`: what `all_reduce` gives, to the bit, for the root alone. Large arrays
  are reduced along the ring, and each member sends its chunk to the root.
* `gather`: everybody's rows go to the root; numbers of rows may differ.
* `scatter`: the root's rows go to the members, who learn from it what comes.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import ProtocolError, UsageError
from pcp.runtime.collectives.build import Seat
from pcp.runtime.collectives.direct import Contribution, EagerReduce, Exchange, Ring
from pcp.runtime.collectives.operation import Operation, Pending
from pcp.runtime.collectives.reduction import Reduction, bounds
from pcp.runtime.collectives.submit import Posting, Seconds
from pcp.runtime.collectives.validation import (
    check_root,
    count_of,
    facts_of,
    ranges_of,
    rows_of,
)
from pcp.runtime.communicator.array_interop import foreign
from pcp.runtime.memory.buffer_pool import checked, octets
from pcp.runtime.memory.dtypes import sent_dtype
from pcp.runtime.transport.frame import Header
from pcp.wire import EAGER_BYTES

_NOTHING = memoryview(b"")


class Rooted(Posting):
    """The part of a communicator that has roots."""

    def reduce(
        self,
        array: NDArray,
        op: str = "sum",
        root: int = 0,
        *,
        tag: str = "",
        timeout: Seconds = None,
    ) -> NDArray:
        """The root's `array` becomes the reduction, the others' stay; returns it.

        The root holds the bits that `all_reduce` would give by default up to
        `reduction.LARGE_WORLD` members, and the ring's bits beyond.
        """
        return self.reduce_async(array, op, root, tag=tag, timeout=timeout).result()

    @foreign(writes=True)
    def reduce_async(
        self,
        array: NDArray,
        op: str = "sum",
        root: int = 0,
        *,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `reduce`, at once."""
        patience = self._patience(timeout)
        return self._post(reduce(self._seat, array, op, root, patience), tag)

    def gather(
        self, array: NDArray, root: int = 0, *, tag: str = "", timeout: Seconds = None
    ) -> NDArray | None:
        """At the root all members' rows in rank order; None at the others.

        First dimensions may differ; scalars become a vector.
        """
        return self.gather_async(array, root, tag=tag, timeout=timeout).result()

    @foreign()
    def gather_async(
        self, array: NDArray, root: int = 0, *, tag: str = "", timeout: Seconds = None
    ) -> Pending:
        """As `gather`, at once."""
        patience = self._patience(timeout)
        return self._post(gather(self._seat, array, root, patience), tag)

    def scatter(
        self,
        array: NDArray | None,
        root: int = 0,
        *,
        sizes: Sequence[int] | None = None,
        tag: str = "",
        timeout: Seconds = None,
    ) -> NDArray:
        """This member's rows of the root's array; the others pass None.

        `sizes` (the root's) are the members' numbers of rows; without it they are
        as even as in `reduce_scatter`.
        """
        return self.scatter_async(
            array, root, sizes=sizes, tag=tag, timeout=timeout
        ).result()

    @foreign()
    def scatter_async(
        self,
        array: NDArray | None,
        root: int = 0,
        *,
        sizes: Sequence[int] | None = None,
        tag: str = "",
        timeout: Seconds = None,
    ) -> Pending:
        """As `scatter`, at once."""
        patience = self._patience(timeout)
        return self._post(scatter(self._seat, array, root, sizes, patience), tag)


class RingToRoot(Ring):
    """The ring's reduction; its owners then send their chunks to the root."""

    def __init__(self, *args: Any, root: int, **options: Any) -> None:
        super().__init__(*args, gather=False, **options)
        self._root = root
        self._at = {peer: self._chunks[peer][0] for peer in self.peers}

    def place(self, peer: int, header: Header) -> memoryview:
        if header.step < self._last:
            return super().place(peer, header)
        start, end = self._at[peer], self._chunks[peer][1]
        stop = min(start + self._step, end)
        room = self._out[start:stop]
        expected = (self._last, start, room.nbytes)
        if (
            self._rank != self._root
            or not room.size
            or expected
            != (
                header.step,
                header.offset,
                header.length,
            )
        ):
            raise ProtocolError(f"{self.name}: rank {peer} sent bytes out of place")
        return octets(room)

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        if header.step == self._last:
            self._at[peer] += len(payload) // self._dtype.itemsize
            return
        super().arrived(peer, header, payload)
        if header.step == self._last - 1 and self._rank != self._root:
            count = len(payload) // self._reduction.accumulator.itemsize
            done = self._out[header.offset : header.offset + count]
            self.send_data(self._root, self._last, header.offset, octets(done))

    def complete(self) -> bool:
        chunks = self._chunks
        whole = all(at == chunks[peer][1] for peer, at in self._at.items())
        return super().complete() and (whole or self._rank != self._root)

    @property
    def _last(self) -> int:
        """The step in which chunks go to the root."""
        return self._size - 1


def reduce(seat: Seat, array: NDArray, op: str, root: int, timeout: float) -> Operation:
    """The root's array becomes the reduction."""
    at_root = _is_root(seat, root, "reduce to")
    array = checked(array, "reduce", writable=at_root)

    def write(flat: NDArray) -> NDArray:
        if at_root:
            np.copyto(array.reshape(-1), flat.reshape(-1))
        return array

    reduction = Reduction.of(op, array.dtype)
    part = Contribution(seat.rank, array, reduction, write, seat.pool)
    facts = facts_of("reduce", array, op=op, root=root)
    if array.nbytes <= EAGER_BYTES or seat.world_size == 1:
        return EagerReduce(seat.peers, facts, timeout, part)
    chunks = bounds(array.size, seat.world_size)
    return RingToRoot(
        seat.peers,
        facts | seat.ring_facts,
        timeout,
        part,
        root=root,
        chunks=chunks,
        order=seat.ring,
    )


def gather(seat: Seat, array: NDArray, root: int, timeout: float) -> Operation:
    """Everybody's rows for the root."""
    array = checked(array, "gather")
    at_root = _is_root(seat, root, "gather at")
    mine = array.reshape(1) if array.ndim == 0 else array
    parts = {seat.rank: mine}

    def room(peer: int, theirs: dict[str, Any]) -> memoryview:
        if not at_root:
            return _NOTHING
        parts[peer] = np.empty((rows_of(theirs), *mine.shape[1:]), mine.dtype)
        return octets(parts[peer])

    def join() -> NDArray | None:
        if not at_root:
            return None
        return np.concatenate([parts[rank] for rank in range(seat.world_size)])

    facts = {
        "kind": "gather",
        "dtype": mine.dtype.name,
        "rows": mine.shape[0],
        "row shape": list(mine.shape[1:]),
        "root": root,
    }
    return Exchange(
        seat.peers,
        facts,
        timeout,
        outgoing={} if at_root else {root: octets(mine)},
        room=room,
        commit=join,
        free=frozenset({"rows"}),
    )


def scatter(
    seat: Seat,
    array: NDArray | None,
    root: int,
    sizes: Sequence[int] | None,
    timeout: float,
) -> Operation:
    """The root's rows for everybody."""
    if not _is_root(seat, root, "scatter from"):
        if array is not None or sizes is not None:
            raise UsageError(f"only the root, rank {root}, says what it scatters")
        return _receiving(seat, root, timeout)
    if array is None:
        raise UsageError(f"rank {root} is the root of this scatter: it needs an array")
    array = checked(array, "scatter")
    if array.ndim == 0:
        raise UsageError("scatter needs a first dimension to split")
    ranges = bounds(array.shape[0], seat.world_size)
    if sizes is not None:
        ranges = ranges_of(sizes, array.shape[0], seat.world_size)
    parts = [array[a:b] for a, b in ranges]
    facts = {
        "kind": "scatter",
        "root": root,
        "dtype": array.dtype.name,
        "sizes": [b - a for a, b in ranges],
        "row shape": list(array.shape[1:]),
    }
    return Exchange(
        seat.peers,
        facts,
        timeout,
        outgoing={peer: octets(parts[peer]) for peer in seat.peers},
        room=lambda peer, _: _NOTHING,
        commit=lambda: parts[root].copy(),
        free=_ROOTS_OWN,
    )


_ROOTS_OWN = frozenset({"dtype", "sizes", "row shape"})


def _receiving(seat: Seat, root: int, timeout: float) -> Operation:
    result: list[NDArray] = []

    def room(peer: int, theirs: dict[str, Any]) -> memoryview:
        if peer != root:
            return _NOTHING
        sizes, rest = theirs.get("sizes"), theirs.get("row shape")
        if not isinstance(sizes, list) or len(sizes) != seat.world_size:
            raise ProtocolError(f"rank {root} scatters in {sizes!r}")
        if not isinstance(rest, list):
            raise ProtocolError(f"rank {root} scatters rows of {rest!r}")
        shape = [count_of(sizes[seat.rank]), *map(count_of, rest)]
        result.append(np.empty(shape, sent_dtype(theirs.get("dtype"))))
        return octets(result[0])

    return Exchange(
        seat.peers,
        {"kind": "scatter", "root": root},
        timeout,
        outgoing={},
        room=room,
        commit=lambda: result[0],
        free=_ROOTS_OWN,
    )


def _is_root(seat: Seat, root: int, what: str) -> bool:
    check_root(seat.world_size, root, what)
    return seat.rank == root
