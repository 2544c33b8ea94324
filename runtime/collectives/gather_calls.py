"""Calls that gather or scatter rows: all_gather, gather and scatter."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import ProtocolError, UsageError
from pcp.runtime.collectives.call import Tagged
from pcp.runtime.collectives.direct import Exchange
from pcp.runtime.collectives.member_context import MemberContext
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.reduction import bounds
from pcp.runtime.collectives.validation import check_root, count_of, ranges_of, rows_of
from pcp.runtime.memory.buffer_pool import checked, octets
from pcp.runtime.memory.dtypes import sent_dtype

_NOTHING = memoryview(b"")
_ROOTS_OWN = frozenset({"dtype", "sizes", "row shape"})
"""Keys of a scatter's descriptor that only the root knows."""


@dataclass(frozen=True, eq=False)
class AllGather(Tagged[NDArray]):
    """All members' arrays, joined along the first dimension in rank order.

    First dimensions may differ; scalars become a vector.
    """

    name = "all_gather"
    memory = "array"

    array: NDArray

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The rows of all members, sent to all members."""
        array = checked(self.array, self.name)
        mine = array.reshape(1) if array.ndim == 0 else array
        size, rows = context.world_size, mine.shape[0]
        whole = context.pool.new((size * rows, *mine.shape[1:]), mine.dtype)
        parts = {rank: whole[rank * rows : (rank + 1) * rows] for rank in range(size)}

        def room(peer: int, theirs: dict[str, Any]) -> memoryview:
            if (count := rows_of(theirs)) != rows:
                parts[peer] = np.empty((count, *mine.shape[1:]), mine.dtype)
            return octets(parts[peer])

        def join() -> NDArray:
            np.copyto(parts[context.rank], mine)
            even = all(len(part) == rows for part in parts.values())
            return whole if even else np.concatenate(list(parts.values()))

        return Exchange(
            context.peers,
            _rows_facts(self.name, mine),
            timeout,
            outgoing=dict.fromkeys(context.peers, octets(mine)),
            room=room,
            commit=join,
            free=frozenset({"rows"}),
        )


@dataclass(frozen=True, eq=False)
class Gather(Tagged[NDArray | None]):
    """At the root all members' rows in rank order; None at the others.

    First dimensions may differ; scalars become a vector.
    """

    name = "gather"
    memory = "array"

    array: NDArray
    root: int = 0

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The rows of all members, sent to the root."""
        array = checked(self.array, self.name)
        check_root(context.world_size, self.root, "gather at")
        at_root = context.rank == self.root
        mine = array.reshape(1) if array.ndim == 0 else array
        parts = {context.rank: mine}

        def room(peer: int, theirs: dict[str, Any]) -> memoryview:
            if not at_root:
                return _NOTHING
            parts[peer] = np.empty((rows_of(theirs), *mine.shape[1:]), mine.dtype)
            return octets(parts[peer])

        def join() -> NDArray | None:
            if not at_root:
                return None
            return np.concatenate([parts[rank] for rank in range(context.world_size)])

        return Exchange(
            context.peers,
            _rows_facts(self.name, mine) | {"root": self.root},
            timeout,
            outgoing={} if at_root else {self.root: octets(mine)},
            room=room,
            commit=join,
            free=frozenset({"rows"}),
        )


@dataclass(frozen=True, eq=False)
class Scatter(Tagged[NDArray]):
    """This member's rows of the root's array; the others pass None.

    `sizes` (the root's) are the members' numbers of rows; without it they are
    as even as in `reduce_scatter`.
    """

    name = "scatter"
    memory = "array"

    array: NDArray | None
    root: int = 0
    _: KW_ONLY
    sizes: Sequence[int] | None = None

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The root's rows, sent to their members."""
        root = self.root
        check_root(context.world_size, root, "scatter from")
        if context.rank != root:
            if self.array is not None or self.sizes is not None:
                raise UsageError(f"only the root, rank {root}, says what it scatters")
            return self._receiving(context, timeout)
        if self.array is None:
            raise UsageError(
                f"rank {root} is the root of this scatter: it needs an array"
            )
        array = checked(self.array, self.name)
        if array.ndim == 0:
            raise UsageError("scatter needs a first dimension to split")
        ranges = bounds(array.shape[0], context.world_size)
        if self.sizes is not None:
            ranges = ranges_of(self.sizes, array.shape[0], context.world_size)
        parts = [array[a:b] for a, b in ranges]
        facts = {
            "kind": self.name,
            "root": root,
            "dtype": array.dtype.name,
            "sizes": [b - a for a, b in ranges],
            "row shape": list(array.shape[1:]),
        }
        return Exchange(
            context.peers,
            facts,
            timeout,
            outgoing={peer: octets(parts[peer]) for peer in context.peers},
            room=lambda peer, _: _NOTHING,
            commit=lambda: parts[root].copy(),
            free=_ROOTS_OWN,
        )

    def _receiving(self, context: MemberContext, timeout: float) -> Operation:
        root, result = self.root, list[NDArray]()

        def room(peer: int, theirs: dict[str, Any]) -> memoryview:
            if peer != root:
                return _NOTHING
            sizes, rest = theirs.get("sizes"), theirs.get("row shape")
            if not isinstance(sizes, list) or len(sizes) != context.world_size:
                raise ProtocolError(f"rank {root} scatters in {sizes!r}")
            if not isinstance(rest, list):
                raise ProtocolError(f"rank {root} scatters rows of {rest!r}")
            shape = [count_of(sizes[context.rank]), *map(count_of, rest)]
            result.append(np.empty(shape, sent_dtype(theirs.get("dtype"))))
            return octets(result[0])

        return Exchange(
            context.peers,
            {"kind": self.name, "root": root},
            timeout,
            outgoing={},
            room=room,
            commit=lambda: result[0],
            free=_ROOTS_OWN,
        )


def _rows_facts(kind: str, mine: NDArray) -> dict[str, Any]:
    """The descriptor of members that gather: their numbers of rows may differ."""
    return {
        "kind": kind,
        "dtype": mine.dtype.name,
        "rows": mine.shape[0],
        "row shape": list(mine.shape[1:]),
    }
