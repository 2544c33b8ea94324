"""Calls that move arrays: broadcast, all_to_all, exchange, pairs, and the barrier."""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import ProtocolError, UsageError
from pcp.runtime.collectives.barrier import Barrier
from pcp.runtime.collectives.call import Call, Tagged
from pcp.runtime.collectives.direct import Chain, Exchange
from pcp.runtime.collectives.member_context import MemberContext
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.reduce_calls import into
from pcp.runtime.collectives.validation import check_peer, count_of, facts_of, routes_of
from pcp.runtime.memory.buffer_pool import checked, octets
from pcp.wire import EAGER_BYTES

_NOTHING = memoryview(b"")


@dataclass(frozen=True, eq=False)
class Broadcast(Tagged[NDArray]):
    """`array` becomes the root's, on all members; returns it."""

    name = "broadcast"
    memory = "array"
    writes = True

    array: NDArray
    root: int = 0

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The root's array, sent to all members."""
        return self._to(context, range(context.world_size), timeout)

    def _to(
        self, context: MemberContext, among: Iterable[int], timeout: float
    ) -> Operation:
        root, at_root = self.root, context.rank == self.root
        array = checked(self.array, self.name, writable=not at_root)
        order = _order(context, root, set(among))
        scratch = array if at_root else context.pool.new(array.shape, array.dtype)
        view = octets(scratch)

        def write() -> NDArray:
            if not at_root:
                np.copyto(array, scratch)
            return array

        facts = facts_of(self.name, array, root=root)
        if array.nbytes > EAGER_BYTES:
            facts = context.along_ring(facts)
            return Chain(
                order, facts, timeout, rank=context.rank, view=view, commit=write
            )
        peers = [member for member in order if member != context.rank]
        return Exchange(
            peers,
            facts,
            timeout,
            outgoing=dict.fromkeys(peers, view) if at_root else {},
            room=lambda peer, _: view if peer == root else _NOTHING,
            commit=write,
        ).only(peers if at_root else [root])


@dataclass(frozen=True, eq=False)
class BroadcastAmong(Broadcast):
    """`array` becomes the root's, on all members or on those of `among`.

    Members that take part in some of a tag's broadcasts number them by `turn`, which
    only grows.
    """

    _: KW_ONLY
    among: Iterable[int] | None = None
    turn: int | None = None

    def number(self) -> int | None:
        """The caller's `turn`."""
        return self.turn

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The root's array, sent to all members or to `among`."""
        among = range(context.world_size) if self.among is None else self.among
        return self._to(context, among, timeout)


def _order(context: MemberContext, root: int, wanted: set[int]) -> list[int]:
    """The wanted members along the ring, the root first."""
    members = [rank for rank in context.ring if rank in wanted]
    if len(members) < len(wanted):
        raise UsageError(f"there is no rank {max(wanted)} to broadcast to")
    if root not in members or context.rank not in members:
        raise UsageError(f"broadcast from rank {root} among {members}")
    at = members.index(root)
    return members[at:] + members[:at]


@dataclass(frozen=True, eq=False)
class AllToAll(Tagged[NDArray]):
    """Send part j of the first dimension to member j; the value is their parts.

    The first dimension must be a multiple of the world size; the result
    has the shape of `array`, part i coming from member i.
    """

    name = "all_to_all"
    memory = "array"

    array: NDArray

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """Part j of all members' rows, sent to member j."""
        array = checked(self.array, self.name)
        size = context.world_size
        if array.ndim == 0 or array.shape[0] % size:
            raise UsageError(
                f"all_to_all splits the first dimension into {size} equal parts; "
                f"the shape is {list(array.shape)}"
            )
        result = context.pool.new(array.shape, array.dtype)
        rows = array.shape[0] // size
        parts = [slice(i * rows, (i + 1) * rows) for i in range(size)]

        def finish() -> NDArray:
            result[parts[context.rank]] = array[parts[context.rank]]
            return result

        return Exchange(
            context.peers,
            facts_of(self.name, array),
            timeout,
            outgoing={peer: octets(array[parts[peer]]) for peer in context.peers},
            room=lambda peer, _: octets(result[parts[peer]]),
            commit=finish,
        )


@dataclass(frozen=True, eq=False)
class AllToAllV(Tagged[list[NDArray]]):
    """Send `parts[j]` to member j; the value is a list of the parts of each member.

    All parts of all members have one type and one shape beyond the first
    dimension, which may differ and may be 0.
    """

    name = "exchange"
    memory = "parts"

    parts: Sequence[NDArray]

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The parts, each sent to its member."""
        parts = [checked(part, self.name) for part in self.parts]
        kinds = {(part.dtype, part.shape[1:]) for part in parts if part.ndim}
        whole = len(parts) == context.world_size and all(part.ndim for part in parts)
        if not whole or len(kinds) != 1:
            raise UsageError(
                f"exchange takes one array for each of {context.world_size} members, "
                f"alike but for the first dimension"
            )
        ((dtype, rest),) = kinds
        found = {context.rank: parts[context.rank]}

        def room(peer: int, theirs: dict[str, Any]) -> memoryview:
            rows = theirs.get("rows")
            if not isinstance(rows, list) or len(rows) != context.world_size:
                raise ProtocolError(f"rank {peer} exchanges {rows!r} rows")
            found[peer] = np.empty((count_of(rows[context.rank]), *rest), dtype)
            return octets(found[peer])

        def finish() -> list[NDArray]:
            found[context.rank] = found[context.rank].copy()
            return [found[rank] for rank in range(context.world_size)]

        facts = {
            "kind": self.name,
            "dtype": dtype.name,
            "row shape": list(rest),
            "rows": [len(part) for part in parts],
        }
        return Exchange(
            context.peers,
            facts,
            timeout,
            outgoing={peer: octets(parts[peer]) for peer in context.peers},
            room=room,
            commit=finish,
            free=frozenset({"rows"}),
        )


@dataclass(frozen=True, eq=False)
class Permute(Tagged[NDArray]):
    """Send arrays along `pairs` of (source, target); the value is the received array.

    A member that is no target gets zeros.
    """

    name = "permute"
    memory = "array"

    array: NDArray
    pairs: Sequence[tuple[int, int]]

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The arrays, sent along the pairs; zeros at a member that is no target."""
        array = checked(self.array, self.name)
        routes = routes_of(self.pairs, context.world_size)
        source = next((s for s, t in routes if t == context.rank), None)
        shape, dtype = array.shape, array.dtype
        nothing = source is None
        result = np.zeros(shape, dtype) if nothing else context.pool.new(shape, dtype)
        view = octets(result)
        targets = [t for s, t in routes if s == context.rank and t != context.rank]

        def finish() -> NDArray:
            if source == context.rank:
                np.copyto(result, array)
            return result

        return Exchange(
            context.peers,
            facts_of(self.name, array, pairs=[list(route) for route in routes]),
            timeout,
            outgoing=dict.fromkeys(targets, octets(array)),
            room=lambda peer, _: view if peer == source else _NOTHING,
            commit=finish,
        ).only({*targets, *([] if source is None else [source])} - {context.rank})


@dataclass(frozen=True, eq=False)
class Send(Call[None]):
    """Send to the member whose `recv` has the same tag.

    Up to 32 KiB are sent at once; a larger array waits for the receiver.
    """

    name = "send"
    memory = "array"

    array: NDArray
    dst: int
    tag: int = 0

    def label(self, rank: int) -> str:
        """The tag of this pair, in this direction."""
        return f"p2p/{rank}/{self.dst}/{self.tag}"

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The sending end of a pair."""
        array = checked(self.array, self.name)
        check_peer(context.rank, context.world_size, self.dst, "send to")
        return Exchange(
            [self.dst],
            facts_of("send/recv", array),
            timeout,
            outgoing={self.dst: octets(array)},
            room=lambda peer, _: _NOTHING,
            commit=lambda: None,
            agreed=False,
        )


@dataclass(frozen=True, eq=False)
class Recv(Call[NDArray]):
    """`out` becomes the array that member `src` sends under the tag; returns it."""

    name = "recv"
    memory = "out"
    writes = True

    out: NDArray
    src: int
    tag: int = 0

    def label(self, rank: int) -> str:
        """The tag of this pair, in this direction."""
        return f"p2p/{self.src}/{rank}/{self.tag}"

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The receiving end of a pair."""
        out = checked(self.out, self.name, writable=True)
        check_peer(context.rank, context.world_size, self.src, "receive from")
        scratch, write = context.pool.new(out.shape, out.dtype), into(out)
        return Exchange(
            [self.src],
            facts_of("send/recv", out),
            timeout,
            outgoing={},
            room=lambda peer, _: octets(scratch),
            commit=lambda: write(scratch),
            agreed=False,
        )


@dataclass(frozen=True, eq=False)
class BarrierCall(Tagged[None]):
    """Wait until all members have reached the barrier, and earlier operations are over.

    Those are all operations of this communicator that were called before on any
    member, whatever their tags, `_async` ones too: each has happened on all members,
    or failed on all, which its own future reports. Without `pairs` the barrier does
    not wait for sends and receives, which may then be matched behind it.
    """

    name = "barrier"

    _: KW_ONLY
    pairs: bool = True

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The barrier of this member."""
        return Barrier(context.peers, timeout, pairs=self.pairs)
