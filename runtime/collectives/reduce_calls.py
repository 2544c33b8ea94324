"""Calls that reduce: all_reduce, all_reduced, reduce_scatter and reduce."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError
from pcp.runtime.collectives.call import Tagged
from pcp.runtime.collectives.compressed_reduce import CompressedReduce, CompressionSpec
from pcp.runtime.collectives.direct import Contribution, EagerReduce, EagerScatter, Ring
from pcp.runtime.collectives.in_place_reduce import InPlaceReduce, through_memory
from pcp.runtime.collectives.member_context import MemberContext
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.reduction import Reduction, bounds, declared
from pcp.runtime.collectives.rooted import RingToRoot
from pcp.runtime.collectives.schedule import DIRECT, schedule
from pcp.runtime.collectives.scheduled_reduce import Scheduled
from pcp.runtime.collectives.validation import check_root, facts_of, ranges_of
from pcp.runtime.collectives.zero_copy_reduce import ZeroCopyReduce, straight, visible
from pcp.runtime.compression.codecs import Codec, codec
from pcp.runtime.compression.error_feedback import ErrorFeedback
from pcp.runtime.memory.buffer_pool import checked
from pcp.runtime.memory.shared_arrays import ARRAYS
from pcp.runtime.memory.shared_segment import SMALLEST
from pcp.wire import EAGER_BYTES

_COMPRESSIBLE = ("float32", "bfloat16", "float16")
Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, eq=False)
class AllReduce(Tagged[NDArray]):
    """`array` becomes the reduction of all members' arrays; returns it.

    `op` is sum, mean, max, min or prod. All members end with the same
    bits; `reduction` declares the order and the accumulation type.
    `algorithm` overrides the choice by size and world (`schedule` lists them).
    `compression` names one of `codecs`, for sums and means of floats up to
    32 bits; `feedback` keeps under the tag what it drops, for the next call.
    """

    name = "all_reduce"
    memory = "array"
    writes = True

    array: NDArray
    op: str = "sum"
    _: KW_ONLY
    algorithm: str | None = None
    compression: str | Codec | None = None
    feedback: ErrorFeedback | None = None

    def operation(self, seat: MemberContext, timeout: float) -> Operation:
        """The reduction, in the caller's array."""
        squeeze = _squeeze(self.compression, self.feedback, self.tag)
        array = checked(self.array, self.name, writable=True)
        return self._reduced(seat, array, array, timeout, squeeze)

    def _reduced(
        self,
        seat: MemberContext,
        array: NDArray,
        target: NDArray,
        timeout: float,
        squeeze: CompressionSpec | None,
    ) -> Operation:
        """The reduction of everybody's `array`, in `target`: the same, or a new one."""
        algorithm, size = self.algorithm, seat.world_size
        # Nobody has a new array before all have voted: it can be worked in.
        out = None if target is array else target.reshape(-1)
        part = _contribution(seat, self.op, array, into(target), out)
        facts = facts_of("all_reduce", array, op=self.op)
        if squeeze is not None:
            if algorithm is not None:
                raise UsageError("a compressed reduction has an algorithm of its own")
            chunks = bounds(array.size, size)
            return _compressed(seat, facts, timeout, part, squeeze, chunks, True)
        if algorithm is not None:
            facts |= {"algorithm": algorithm}
        choice = algorithm or declared(array.nbytes, size)
        if choice not in DIRECT:
            return Scheduled(seat.peers, facts, timeout, part, schedule(choice, size))
        if _eagerly(seat, array, algorithm, choice):
            return EagerReduce(seat.peers, facts, timeout, part)
        through = through_memory(array.nbytes, size) if algorithm is None else Ring
        chunks = bounds(array.size, size)
        return _large(seat, facts, timeout, part, chunks, target, through)


@dataclass(frozen=True, eq=False)
class AllReduced(AllReduce):
    """The reduction of all members' arrays, a new array; `array` stays as it is.

    With `donate` it need not: where that saves a copy, which is with engines of
    other libraries, the result takes its place. All else is as in `all_reduce`, the
    bits too. It is faster, since nothing is copied when all have voted, most so on
    one machine for arrays of `shared_empty` and results of this call.
    """

    name = "all_reduced"
    writes = False

    _: KW_ONLY
    donate: bool = False

    def operation(self, seat: MemberContext, timeout: float) -> Operation:
        """The reduction, in a new array.

        That a member wants it like that is its own affair: to the others it is an
        all_reduce.
        """
        squeeze = _squeeze(self.compression, self.feedback, self.tag)
        array = checked(self.array, self.name)
        commons, size = seat.commons, seat.world_size
        chosen = squeeze is not None or self.algorithm is not None
        along_the_ring = declared(array.nbytes, size) == "ring"
        straightly = along_the_ring and not chosen and array.nbytes >= SMALLEST
        if commons is None or not commons.possible or not straightly:
            target = seat.pool.new(array.shape, array.dtype)
            return self._reduced(seat, array, target, timeout, squeeze)
        chunks, through = bounds(array.size, size), straight(array.nbytes, size)
        own = chunks[seat.rank] if through is ZeroCopyReduce else (0, 0)
        target, room = ARRAYS.placed(array.shape, array.dtype)
        return through(
            seat.peers,
            facts_of("all_reduce", array, op=self.op) | seat.ring_facts,
            timeout,
            _contribution(seat, self.op, array, into(target)),
            commons=commons,
            visible=visible(array, own, commons.arrays, seat.peers),
            target=target,
            room=room,
            chunks=chunks,
            order=seat.ring,
            gather=True,
        )


@dataclass(frozen=True, eq=False)
class ReduceScatter(Tagged[NDArray]):
    """This member's part of the reduction, split along the first dimension.

    `sizes` are the members' numbers of rows; without it, of n rows members
    get n // world_size each, the first n % world_size of them one more.
    `compression` and `feedback` are as in `all_reduce`.
    """

    name = "reduce_scatter"
    memory = "array"

    array: NDArray
    op: str = "sum"
    _: KW_ONLY
    sizes: Sequence[int] | None = None
    compression: str | Codec | None = None
    feedback: ErrorFeedback | None = None

    def rows(self, members: int) -> list[tuple[int, int]]:
        """The rows that each member gets; UsageError where there are none to split."""
        if self.array.ndim == 0:
            raise UsageError("reduce_scatter needs a first dimension to split")
        if self.sizes is not None:
            return ranges_of(self.sizes, self.array.shape[0], members)
        return bounds(self.array.shape[0], members)

    def operation(self, seat: MemberContext, timeout: float) -> Operation:
        """The reduction of the own rows."""
        squeeze = _squeeze(self.compression, self.feedback, self.tag)
        array = checked(self.array, self.name)
        rows = self.rows(seat.world_size)
        first, last = rows[seat.rank]
        width = array[0].size if array.shape[0] else 0

        def shaped(part: NDArray) -> NDArray:
            return part.reshape(last - first, *array.shape[1:]).copy()

        def take(flat: NDArray) -> NDArray:
            return shaped(flat.reshape(-1)[first * width : last * width])

        part = _contribution(seat, self.op, array, take)
        split = [list(edges) for edges in rows]
        facts = facts_of(self.name, array, op=self.op, rows=split)
        chunks = [(a * width, b * width) for a, b in rows]
        if squeeze is not None:
            return _compressed(seat, facts, timeout, part, squeeze, chunks, False)
        if array.nbytes <= EAGER_BYTES or seat.world_size == 1:
            own = replace(part, commit=shaped)
            return EagerScatter(seat.peers, facts, timeout, own, chunks=chunks)
        return _large(seat, facts, timeout, part, chunks, None, InPlaceReduce)


@dataclass(frozen=True, eq=False)
class Reduce(Tagged[NDArray]):
    """The root's `array` becomes the reduction, the others' stay; returns it.

    The root holds the bits that `all_reduce` would give by default up to
    `reduction.LARGE_WORLD` members, and the ring's bits beyond.
    """

    name = "reduce"
    memory = "array"
    writes = True

    array: NDArray
    op: str = "sum"
    root: int = 0

    def operation(self, seat: MemberContext, timeout: float) -> Operation:
        """The reduction, in the root's array."""
        check_root(seat.world_size, self.root, "reduce to")
        at_root = seat.rank == self.root
        array = checked(self.array, self.name, writable=at_root)

        def write(flat: NDArray) -> NDArray:
            if at_root:
                np.copyto(array.reshape(-1), flat.reshape(-1))
            return array

        part = _contribution(seat, self.op, array, write)
        facts = facts_of(self.name, array, op=self.op, root=self.root)
        if array.nbytes <= EAGER_BYTES or seat.world_size == 1:
            return EagerReduce(seat.peers, facts, timeout, part)
        return RingToRoot(
            seat.peers,
            facts | seat.ring_facts,
            timeout,
            part,
            root=self.root,
            chunks=bounds(array.size, seat.world_size),
            order=seat.ring,
        )


def into(array: NDArray) -> Callable[[NDArray], NDArray]:
    """What writes a result into `array` and returns that."""
    flat = array.reshape(-1)

    def write(result: NDArray) -> NDArray:
        if not np.may_share_memory(result, flat):  # or it was made there
            np.copyto(flat, result.reshape(-1))
        return array

    return write


def _squeeze(
    compression: str | Codec | None, feedback: ErrorFeedback | None, tag: str
) -> CompressionSpec | None:
    if compression is None:
        if feedback is not None:
            raise UsageError("feedback= without compression= has nothing to remember")
        return None
    return CompressionSpec(codec(compression), feedback, tag)


def _contribution(
    seat: MemberContext,
    op: str,
    array: NDArray,
    commit: Callable[[NDArray], NDArray],
    out: NDArray | None = None,
) -> Contribution:
    reduction = Reduction.of(op, array.dtype)
    return Contribution(seat.rank, array, reduction, commit, seat.pool, out)


def _compressed(
    seat: MemberContext,
    facts: dict[str, Any],
    timeout: float,
    part: Contribution,
    squeeze: CompressionSpec,
    ranges: Ranges,
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


def _large(
    seat: MemberContext,
    facts: dict[str, Any],
    timeout: float,
    part: Contribution,
    chunks: Ranges,
    target: NDArray | None,
    through: type[Ring],
) -> Operation:
    """A reduction along the ring, or through memory where there is some."""
    facts = facts | seat.ring_facts
    ring: dict[str, Any] = {"chunks": chunks, "order": seat.ring}
    ring["gather"] = target is not None
    small = part.source.nbytes < SMALLEST
    if seat.commons is not None and not small and issubclass(through, InPlaceReduce):
        memory = {"commons": seat.commons, "target": target}
        return through(seat.peers, facts, timeout, part, **memory, **ring)
    return Ring(seat.peers, facts, timeout, part, **ring)


def _eagerly(
    seat: MemberContext, array: NDArray, algorithm: str | None, choice: str
) -> bool:
    """Whether a reduction goes with the OPEN frames, which have little room."""
    if algorithm == "eager" and array.nbytes > EAGER_BYTES:
        raise UsageError(
            f"algorithm 'eager' is for up to {EAGER_BYTES} bytes, not "
            f"{array.nbytes}; leave algorithm= out, or take 'ring'"
        )
    return choice == "eager" or seat.world_size == 1
