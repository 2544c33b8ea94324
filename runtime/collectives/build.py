"""From a call to an operation: arguments checked, algorithm chosen.

One function a collective. Each checks what it is given before anything is
sent, says in the descriptor what all members must agree on, and binds the
algorithm to the caller's array.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError
from pcp.runtime.collectives.compressed_reduce import CompressedReduce, Squeeze
from pcp.runtime.collectives.direct import (
    Chain,
    Contribution,
    EagerReduce,
    EagerScatter,
    Exchange,
    Ring,
)
from pcp.runtime.collectives.in_place_reduce import SharedReduce, through_memory
from pcp.runtime.collectives.member_context import Seat
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.reduction import Reduction, bounds, declared
from pcp.runtime.collectives.schedule import DIRECT, schedule
from pcp.runtime.collectives.scheduled_reduce import Scheduled
from pcp.runtime.collectives.validation import (
    check_peer,
    facts_of,
    ranges_of,
    routes_of,
    rows_of,
)
from pcp.runtime.collectives.zero_copy_reduce import StraightReduce, straight, visible
from pcp.runtime.memory.buffer_pool import checked, octets
from pcp.runtime.memory.shared_arrays import ARRAYS
from pcp.runtime.memory.shared_segment import SMALLEST
from pcp.wire import EAGER_BYTES

_NOTHING = memoryview(b"")
_COMPRESSIBLE = ("float32", "bfloat16", "float16")


def _contribution(
    seat: Seat, op: str, array: NDArray, commit: Callable[[NDArray], NDArray]
) -> Contribution:
    reduction = Reduction.of(op, array.dtype)
    return Contribution(seat.rank, array, reduction, commit, seat.pool)


def _compressed(
    seat: Seat,
    facts: dict[str, Any],
    timeout: float,
    part: Contribution,
    squeeze: Squeeze,
    ranges: Sequence[tuple[int, int]],
    gather: bool,
) -> Operation:
    op, dtype = part.reduction.op, part.source.dtype
    if dtype.name not in _COMPRESSIBLE or op not in ("sum", "mean"):
        raise UsageError(
            f"compression is for sums and means of {', '.join(_COMPRESSIBLE)}, not "
            f"for the {op} of {dtype}; call it without compression"
        )
    return CompressedReduce(
        seat.peers,
        facts | {"compression": squeeze.codec.name},
        timeout,
        part,
        ranges=ranges,
        gather=gather,
        squeeze=squeeze,
    )


def all_reduce(
    seat: Seat,
    array: NDArray,
    op: str,
    timeout: float,
    squeeze: "Squeeze | None" = None,
    algorithm: str | None = None,
) -> Operation:
    """Everybody's array becomes the reduction."""
    array = checked(array, "all_reduce", writable=True)
    return _to_all(seat, array, array, op, timeout, squeeze, algorithm)


def all_reduced(
    seat: Seat,
    array: NDArray,
    op: str,
    timeout: float,
    squeeze: "Squeeze | None" = None,
    algorithm: str | None = None,
) -> Operation:
    """A new array becomes the reduction of everybody's.

    Whether a member wants it like that is its own affair: to the others it is an
    all_reduce.
    """
    array = checked(array, "all_reduced")
    commons, size = seat.commons, seat.world_size
    chosen = squeeze is not None or algorithm is not None
    along_the_ring = declared(array.nbytes, size) == "ring"
    straightly = along_the_ring and not chosen and array.nbytes >= SMALLEST
    if commons is None or not commons.possible or not straightly:
        target = seat.pool.new(array.shape, array.dtype)
        return _to_all(seat, array, target, op, timeout, squeeze, algorithm)
    chunks, through = bounds(array.size, size), straight(array.nbytes, size)
    own = chunks[seat.rank] if through is StraightReduce else (0, 0)
    target, room = ARRAYS.placed(array.shape, array.dtype)
    return through(
        seat.peers,
        facts_of("all_reduce", array, op=op) | seat.ring_facts,
        timeout,
        _contribution(seat, op, array, _into(target)),
        commons=commons,
        visible=visible(array, own, commons.arrays, seat.peers),
        target=target,
        room=room,
        chunks=chunks,
        order=seat.ring,
        gather=True,
    )


def _to_all(
    seat: Seat,
    array: NDArray,
    target: NDArray,
    op: str,
    timeout: float,
    squeeze: "Squeeze | None",
    algorithm: str | None,
) -> Operation:
    """The reduction of everybody's `array`, in `target`: the same one, or a new one."""
    part = _contribution(seat, op, array, _into(target))
    facts = facts_of("all_reduce", array, op=op)
    if squeeze is not None:
        if algorithm is not None:
            raise UsageError("a compressed reduction has an algorithm of its own")
        chunks = bounds(array.size, seat.world_size)
        return _compressed(seat, facts, timeout, part, squeeze, chunks, True)
    if algorithm is not None:
        facts |= {"algorithm": algorithm}
    choice = algorithm or declared(array.nbytes, seat.world_size)
    if target is not array:  # nobody has it before all have voted: work in it
        part = replace(part, out=target.reshape(-1))
    if choice not in DIRECT:
        plan = schedule(choice, seat.world_size)
        return Scheduled(seat.peers, facts, timeout, part, plan)
    if _eagerly(seat, array, algorithm, choice):
        return EagerReduce(seat.peers, facts, timeout, part)
    chunks = bounds(array.size, seat.world_size)
    through = through_memory(array.nbytes, seat.world_size)
    if algorithm is not None:
        through = Ring
    return _large(seat, facts, timeout, part, chunks, target, through)


def reduce_scatter(
    seat: Seat,
    array: NDArray,
    op: str,
    sizes: Sequence[int] | None,
    timeout: float,
    squeeze: "Squeeze | None" = None,
) -> Operation:
    """Everybody gets its rows of the reduction."""
    array = checked(array, "reduce_scatter")
    if array.ndim == 0:
        raise UsageError("reduce_scatter needs a first dimension to split")
    rows = bounds(array.shape[0], seat.world_size)
    if sizes is not None:
        rows = ranges_of(sizes, array.shape[0], seat.world_size)
    first, last = rows[seat.rank]
    width = array[0].size if array.shape[0] else 0

    def shaped(part: NDArray) -> NDArray:
        return part.reshape(last - first, *array.shape[1:]).copy()

    def take(flat: NDArray) -> NDArray:
        return shaped(flat.reshape(-1)[first * width : last * width])

    part = _contribution(seat, op, array, take)
    split = [list(bounds_of) for bounds_of in rows]
    facts = facts_of("reduce_scatter", array, op=op, rows=split)
    chunks = [(a * width, b * width) for a, b in rows]
    if squeeze is not None:
        return _compressed(seat, facts, timeout, part, squeeze, chunks, False)
    if array.nbytes <= EAGER_BYTES or seat.world_size == 1:
        own = replace(part, commit=shaped)
        return EagerScatter(seat.peers, facts, timeout, own, chunks=chunks)
    return _large(seat, facts, timeout, part, chunks, None, SharedReduce)


def _large(
    seat: Seat,
    facts: dict[str, Any],
    timeout: float,
    part: Contribution,
    chunks: Sequence[tuple[int, int]],
    target: NDArray | None,
    through: type[Ring],
) -> Operation:
    """A reduction along the ring, or through memory where there is some."""
    facts = facts | seat.ring_facts
    ring = {"chunks": chunks, "order": seat.ring, "gather": target is not None}
    small = part.source.nbytes < SMALLEST
    if seat.commons is not None and not small and issubclass(through, SharedReduce):
        memory = {"commons": seat.commons, "target": target}
        return through(seat.peers, facts, timeout, part, **memory, **ring)
    return Ring(seat.peers, facts, timeout, part, **ring)


def all_gather(seat: Seat, array: NDArray, timeout: float) -> Operation:
    """Everybody's rows, joined in rank order."""
    array = checked(array, "all_gather")
    mine = array.reshape(1) if array.ndim == 0 else array
    size, rows = seat.world_size, mine.shape[0]
    whole = seat.pool.new((size * rows, *mine.shape[1:]), mine.dtype)
    parts = {rank: whole[rank * rows : (rank + 1) * rows] for rank in range(size)}

    def room(peer: int, theirs: dict[str, Any]) -> memoryview:
        if (count := rows_of(theirs)) != rows:
            parts[peer] = np.empty((count, *mine.shape[1:]), mine.dtype)
        return octets(parts[peer])

    def join() -> NDArray:
        np.copyto(parts[seat.rank], mine)
        even = all(len(part) == rows for part in parts.values())
        return whole if even else np.concatenate(list(parts.values()))

    facts = {
        "kind": "all_gather",
        "dtype": mine.dtype.name,
        "rows": rows,
        "row shape": list(mine.shape[1:]),
    }
    return Exchange(
        seat.peers,
        facts,
        timeout,
        outgoing=dict.fromkeys(seat.peers, octets(mine)),
        room=room,
        commit=join,
        free=frozenset({"rows"}),
    )


def broadcast(
    seat: Seat, array: NDArray, root: int, among: Iterable[int] | None, timeout: float
) -> Operation:
    """The root's array for everybody, or for `among`."""
    array = checked(array, "broadcast", writable=seat.rank != root)
    wanted = set(range(seat.world_size) if among is None else among)
    members = [rank for rank in seat.ring if rank in wanted]
    if len(members) < len(wanted):
        raise UsageError(f"there is no rank {max(wanted)} to broadcast to")
    if root not in members or seat.rank not in members:
        raise UsageError(f"broadcast from rank {root} among {members}")
    at = members.index(root)
    order = members[at:] + members[:at]
    at_root = seat.rank == root
    scratch = array if at_root else seat.pool.new(array.shape, array.dtype)
    view = octets(scratch)

    def write() -> NDArray:
        if not at_root:
            np.copyto(array, scratch)
        return array

    facts = facts_of("broadcast", array, root=root)
    if array.nbytes > EAGER_BYTES:
        facts |= seat.ring_facts
        return Chain(order, facts, timeout, rank=seat.rank, view=view, commit=write)
    peers = [member for member in members if member != seat.rank]
    return Exchange(
        peers,
        facts,
        timeout,
        outgoing=dict.fromkeys(peers, view) if at_root else {},
        room=lambda peer, _: view if peer == root else _NOTHING,
        commit=write,
    )


def all_to_all(seat: Seat, array: NDArray, timeout: float) -> Operation:
    """Part j of everybody's rows goes to member j."""
    array = checked(array, "all_to_all")
    size = seat.world_size
    if array.ndim == 0 or array.shape[0] % size:
        raise UsageError(
            f"all_to_all splits the first dimension into {size} equal parts; "
            f"the shape is {list(array.shape)}"
        )
    result = seat.pool.new(array.shape, array.dtype)
    rows = array.shape[0] // size
    parts = [slice(i * rows, (i + 1) * rows) for i in range(size)]

    def finish() -> NDArray:
        result[parts[seat.rank]] = array[parts[seat.rank]]
        return result

    return Exchange(
        seat.peers,
        facts_of("all_to_all", array),
        timeout,
        outgoing={peer: octets(array[parts[peer]]) for peer in seat.peers},
        room=lambda peer, _: octets(result[parts[peer]]),
        commit=finish,
    )


def permute(
    seat: Seat, array: NDArray, pairs: Sequence[Sequence[int]], timeout: float
) -> Operation:
    """Arrays move along (source, target) pairs; zeros where none arrives."""
    array = checked(array, "permute")
    routes = routes_of(pairs, seat.world_size)
    source = next((s for s, t in routes if t == seat.rank), None)
    shape, dtype = array.shape, array.dtype
    nothing = source is None
    result = np.zeros(shape, dtype) if nothing else seat.pool.new(shape, dtype)
    view = octets(result)
    targets = [t for s, t in routes if s == seat.rank and t != seat.rank]

    def finish() -> NDArray:
        if source == seat.rank:
            np.copyto(result, array)
        return result

    return Exchange(
        seat.peers,
        facts_of("permute", array, pairs=[list(route) for route in routes]),
        timeout,
        outgoing=dict.fromkeys(targets, octets(array)),
        room=lambda peer, _: view if peer == source else _NOTHING,
        commit=finish,
    )


def send(seat: Seat, array: NDArray, dst: int, timeout: float) -> Operation:
    """The sending end of a pair."""
    array = checked(array, "send")
    check_peer(seat.rank, seat.world_size, dst, "send to")
    return Exchange(
        [dst],
        facts_of("send/recv", array),
        timeout,
        outgoing={dst: octets(array)},
        room=lambda peer, _: _NOTHING,
        commit=lambda: None,
        agreed=False,
    )


def recv(seat: Seat, out: NDArray, src: int, timeout: float) -> Operation:
    """The receiving end of a pair."""
    out = checked(out, "recv", writable=True)
    check_peer(seat.rank, seat.world_size, src, "receive from")
    scratch, write = seat.pool.new(out.shape, out.dtype), _into(out)
    return Exchange(
        [src],
        facts_of("send/recv", out),
        timeout,
        outgoing={},
        room=lambda peer, _: octets(scratch),
        commit=lambda: write(scratch),
        agreed=False,
    )


def _into(array: NDArray) -> Callable[[NDArray], NDArray]:
    """What writes a result into `array` and returns that."""
    flat = array.reshape(-1)

    def write(result: NDArray) -> NDArray:
        if not np.may_share_memory(result, flat):  # or it was made there
            np.copyto(flat, result.reshape(-1))
        return array

    return write


def _eagerly(seat: Seat, array: NDArray, algorithm: str | None, choice: str) -> bool:
    """Whether a reduction goes with the OPEN frames, which have little room."""
    if algorithm == "eager" and array.nbytes > EAGER_BYTES:
        raise UsageError(
            f"algorithm 'eager' is for up to {EAGER_BYTES} bytes, not "
            f"{array.nbytes}; leave algorithm= out, or take 'ring'"
        )
    return choice == "eager" or seat.world_size == 1
