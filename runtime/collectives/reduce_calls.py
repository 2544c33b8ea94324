"""Calls that reduce: all_reduce, all_reduced, reduce_scatter and reduce."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError, check_name
from pcp.runtime.collectives.call import Tagged
from pcp.runtime.collectives.compressed_reduce import CompressedReduce, CompressionSpec
from pcp.runtime.collectives.direct import Contribution, EagerReduce, EagerScatter
from pcp.runtime.collectives.in_place_reduce import InPlaceReduce, through_memory
from pcp.runtime.collectives.member_context import MemberContext
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.collectives.reduction import Reduction, bounds, declared
from pcp.runtime.collectives.schedule import DIRECT, along_ring, by_name
from pcp.runtime.collectives.scheduled_reduce import ScheduledReduce
from pcp.runtime.collectives.validation import (
    check_root,
    facts_of,
    facts_of_sum,
    ranges_of,
)
from pcp.runtime.collectives.zero_copy_reduce import (
    visible,
    zero_copy_reduce_for,
)
from pcp.runtime.compression.codecs import Codec, codec
from pcp.runtime.compression.error_feedback import ErrorFeedback
from pcp.runtime.memory.buffer_pool import checked, overlap, spans
from pcp.runtime.memory.dtypes import name_of
from pcp.runtime.memory.shared_arrays import ARRAYS, Place
from pcp.runtime.memory.shared_segment import SMALLEST
from pcp.runtime.transport import mover
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
    32 bits; `feedback` keeps its rounding error under the tag, for the next call.
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

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The reduction, in the caller's array."""
        spec = _compression_spec(self.compression, self.feedback, self.tag)
        array = checked(self.array, self.name, writable=True)
        return self._reduced(context, array, array, timeout, spec)

    def _reduced(
        self,
        context: MemberContext,
        array: NDArray,
        target: NDArray,
        timeout: float,
        spec: CompressionSpec | None,
    ) -> Operation:
        """The reduction of all members' arrays, in `target`: `array`, or a new one."""
        algorithm, size = self.algorithm, context.world_size
        # No caller has a new array before all have voted: it can serve as scratch.
        out = None if target is array else target.reshape(-1)
        part = _contribution(context, self.op, array, into(target), out)
        part.in_place = target is array
        facts = facts_of_sum(AllReduce.name, array.dtype, array.shape, self.op)
        if spec is not None:
            if algorithm is not None:
                raise UsageError("a compressed reduction has an algorithm of its own")
            chunks = bounds(array.size, size)
            return _compressed(context, facts, timeout, part, spec, chunks, True)
        if algorithm is not None:
            check_name("an algorithm", algorithm)
            facts = facts | {"algorithm": algorithm}
        far = context.distance
        choice = algorithm or declared(array.nbytes, size, far)
        if far is not None and choice != (algorithm or declared(array.nbytes, size)):
            # Members that know another distance differ from this one.
            facts = facts | {"algorithm": choice}
        if choice not in DIRECT and (plan := by_name(choice, size, context.rank)).moves:
            chunks = bounds(array.size, plan.chunks)
            return ScheduledReduce(context.peers, facts, timeout, part, plan, chunks)
        if _eagerly(context, array, algorithm, choice):
            return EagerReduce(context.peers, facts, timeout, part, target)
        through = through_memory(array.nbytes, size) if algorithm is None else None
        chunks = bounds(array.size, size)
        return _large(context, facts, timeout, part, chunks, target, through)


@dataclass(frozen=True, eq=False)
class AllReduced(AllReduce):
    """The reduction of all members' arrays, a new array; `array` stays as it is.

    `out`, an array like it that shares no memory with it, becomes the result, and holds
    anything if the call fails. With `donate` the result may take the place of `array`,
    where that saves a copy: with engines
    of other libraries. All else is as in `all_reduce`, the bits too. It is faster than
    `all_reduce`, since no result is copied when all have voted, most so on one machine
    for arrays of `shared_empty` and results of this call.
    """

    name = "all_reduced"
    writes = False

    _: KW_ONLY
    donate: bool = False
    out: NDArray | None = None

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The reduction, in a new array.

        The descriptor is that of an all_reduce: members may mix the two calls.
        """
        spec = _compression_spec(self.compression, self.feedback, self.tag)
        array = checked(self.array, self.name)
        shared_scratch, size = context.shared_scratch, context.world_size
        chosen = spec is not None or self.algorithm is not None
        by_frames = chosen or shared_scratch is None or array.nbytes < SMALLEST
        choice = "" if by_frames else declared(array.nbytes, size, context.distance)
        if shared_scratch is None or choice != "ring" or not shared_scratch.possible:
            target = self._target(array, context)
            return self._reduced(context, array, target, timeout, spec)
        chunks = bounds(array.size, size)
        through = zero_copy_reduce_for(array.nbytes, size)
        target, room = self._placed(array)
        seen = None
        if shared_scratch.arrays.reached(context.peers):  # else a copy is of no use
            seen = visible(array, chunks, context.rank, (target, room))
        part = _contribution(context, self.op, array, into(target))
        facts = facts_of_sum(AllReduce.name, array.dtype, array.shape, self.op)
        return through(
            context.peers,
            context.along_ring(facts),
            timeout,
            part,
            along_ring(context.ring, context.rank),
            chunks,
            shared_scratch=shared_scratch,
            visible=seen,
            target=target,
            room=room,
            order=context.ring,
        )

    def _checked_out(self, array: NDArray) -> NDArray | None:
        if self.out is None:
            return None
        out = checked(self.out, self.name, writable=True)
        if (out.shape, out.dtype) != (array.shape, array.dtype):
            raise UsageError(
                f"out= is {out.dtype}{list(out.shape)}, and the array "
                f"{array.dtype}{list(array.shape)}: give one like it, or leave out= out"
            )
        if overlap(spans(out), spans(array)):
            raise UsageError("out= shares memory with the array: use all_reduce")
        return out

    def _target(self, array: NDArray, context: MemberContext) -> NDArray:
        """The array of the result."""
        out = self._checked_out(array)
        return context.pool.new(array.shape, array.dtype) if out is None else out

    def _placed(self, array: NDArray) -> tuple[NDArray, Place | None]:
        """The array of the result, in memory that peers can write to if possible."""
        out = self._checked_out(array)
        if out is None:
            return ARRAYS.placed(array.shape, array.dtype)
        return out, ARRAYS.place(out)


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

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The reduction of the own rows."""
        spec = _compression_spec(self.compression, self.feedback, self.tag)
        array = checked(self.array, self.name)
        rows = self.rows(context.world_size)
        first, last = rows[context.rank]
        width = array[0].size if array.shape[0] else 0

        def shaped(part: NDArray) -> NDArray:
            return part.reshape(last - first, *array.shape[1:]).copy()

        def take(flat: NDArray) -> NDArray:
            return shaped(flat.reshape(-1)[first * width : last * width])

        part = _contribution(context, self.op, array, take)
        split = [list(edges) for edges in rows]
        facts = facts_of(self.name, array, op=self.op, rows=split)
        chunks = [(a * width, b * width) for a, b in rows]
        if spec is not None:
            return _compressed(context, facts, timeout, part, spec, chunks, False)
        if array.nbytes <= EAGER_BYTES or context.world_size == 1:
            own = replace(part, commit=shaped)
            return EagerScatter(context.peers, facts, timeout, own, chunks=chunks)
        return _large(context, facts, timeout, part, chunks, None, InPlaceReduce)


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

    def operation(self, context: MemberContext, timeout: float) -> Operation:
        """The reduction, in the root's array."""
        check_root(context.world_size, self.root, "reduce to")
        at_root = context.rank == self.root
        array = checked(self.array, self.name, writable=at_root)

        def write(flat: NDArray) -> NDArray:
            if at_root:
                np.copyto(array.reshape(-1), flat.reshape(-1))
            return array

        part = _contribution(context, self.op, array, write)
        facts = facts_of(self.name, array, op=self.op, root=self.root)
        if array.nbytes <= EAGER_BYTES or context.world_size == 1:
            return EagerReduce(context.peers, facts, timeout, part)
        plan = along_ring(context.ring, context.rank, root=self.root)
        chunks = bounds(array.size, context.world_size)
        facts = context.along_ring(facts)
        return ScheduledReduce(context.peers, facts, timeout, part, plan, chunks)


def into(array: NDArray) -> Callable[[NDArray], NDArray]:
    """A function that writes a result into `array` and returns `array`."""
    flat = array.reshape(-1)

    def write(result: NDArray) -> NDArray:
        if not np.may_share_memory(result, flat):  # else the result is there already
            mover.copy(flat, result.reshape(-1))
        return array

    return write


def _compression_spec(
    compression: str | Codec | None, feedback: ErrorFeedback | None, tag: str
) -> CompressionSpec | None:
    if compression is None:
        if feedback is not None:
            raise UsageError("feedback= without compression= has nothing to remember")
        return None
    return CompressionSpec(codec(compression), feedback, tag)


def _contribution(
    context: MemberContext,
    op: str,
    array: NDArray,
    commit: Callable[[NDArray], NDArray],
    out: NDArray | None = None,
) -> Contribution:
    reduction = Reduction.of(op, array.dtype)
    return Contribution(context.rank, array, reduction, commit, context.pool, out)


def _compressed(
    context: MemberContext,
    facts: dict[str, Any],
    timeout: float,
    part: Contribution,
    spec: CompressionSpec,
    ranges: Ranges,
    gather: bool,
) -> Operation:
    op, dtype = part.reduction.op, part.source.dtype
    if name_of(dtype) not in _COMPRESSIBLE or op not in ("sum", "mean"):
        raise UsageError(
            f"compression is for sums and means of {', '.join(_COMPRESSIBLE)}, not "
            f"for the {op} of {dtype}; call it without compression"
        )
    return CompressedReduce(
        context.peers,
        facts | {"compression": spec.codec.name},
        timeout,
        part,
        ranges=ranges,
        gather=gather,
        spec=spec,
    )


def _large(
    context: MemberContext,
    facts: dict[str, Any],
    timeout: float,
    part: Contribution,
    chunks: Ranges,
    target: NDArray | None,
    through: type[InPlaceReduce] | None,
) -> Operation:
    """A reduction along the ring, or through shared scratch where there is some."""
    facts = context.along_ring(facts)
    plan = along_ring(context.ring, context.rank, gather=target is not None)
    small = part.source.nbytes < SMALLEST
    if context.shared_scratch is None or small or through is None:
        return ScheduledReduce(context.peers, facts, timeout, part, plan, chunks)
    memory: dict[str, Any] = {
        "shared_scratch": context.shared_scratch,
        "target": target,
    }
    memory["order"] = context.ring
    return through(context.peers, facts, timeout, part, plan, chunks, **memory)


def _eagerly(
    context: MemberContext, array: NDArray, algorithm: str | None, choice: str
) -> bool:
    """Whether a reduction travels in the eager payloads, which have little room."""
    if algorithm == "eager" and array.nbytes > EAGER_BYTES:
        raise UsageError(
            f"algorithm 'eager' is for up to {EAGER_BYTES} bytes, not "
            f"{array.nbytes}; leave algorithm= out, or take 'ring'"
        )
    return choice == "eager" or context.world_size == 1
