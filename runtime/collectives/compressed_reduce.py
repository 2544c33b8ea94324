"""Reductions whose bytes are compressed: all_reduce and reduce_scatter.

Every member owns one range of the elements. It gets the contributions of the other
members to its range, each encoded once, adds them up in rank order in float32, and
sends the encoded sum to all, which decode the same bytes. So a contribution is
rounded once and the sum once, whatever the number of members, where a ring
would round again at every hop. The bytes are those of a ring, the transfers those of
`two_level:N` (`schedule`). It is no schedule with a codec, since there an owner adds to
its own values, which here stand at their rank's place in the sum, and since residuals
belong to contributions, not to transfers.

    member r, range j:   v = input + residual
      j != r             wire = encode(v), to member j
                         residual' = v - decode(wire)
      j == r             total = sum in rank order of decode(wire_i) and of v itself
                         wire = encode(total), to all
                         residual' = total - decode(wire)

With `mean`, total is divided by the number of members before it is encoded, and its
rounding error goes into the residual times that number, so that a residual is always
in units of an input.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import ProtocolError
from pcp.runtime.collectives.direct import Contribution, pieces
from pcp.runtime.collectives.operation import Operation
from pcp.runtime.compression.codecs import Codec
from pcp.runtime.compression.error_feedback import ErrorFeedback
from pcp.runtime.memory.buffer_pool import ScratchLease
from pcp.runtime.transport.frame import Header

SEGMENT = 1 << 18
"""Elements that are encoded, sent and decoded at a time."""
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


@dataclass(frozen=True)
class CompressionSpec:
    """Codec, error feedback and tag of one compressed reduction."""

    codec: Codec
    feedback: ErrorFeedback | None = None
    tag: str = ""


@dataclass
class OperationFeedback:
    """A member's error feedback during one operation."""

    feedback: ErrorFeedback
    tag: str
    before: F32
    after: F32

    @classmethod
    def begin(cls, spec: CompressionSpec, count: int) -> "OperationFeedback | None":
        """Take the residual of the tag; None without error feedback."""
        if (feedback := spec.feedback) is None:
            return None
        before = feedback.take(spec.tag, count)
        return cls(feedback, spec.tag, before, np.zeros(count, np.float32))

    def keep(self, part: slice, exact: F32, sent: F32, times: float = 1) -> None:
        """Keep `times` the rounding error of a part; where it is not finite, zero."""
        with np.errstate(all="ignore"):
            dropped = exact - sent
            if times != 1:
                dropped *= np.float32(times)
        self.after[part] = np.where(np.isfinite(dropped), dropped, np.float32(0))


class Range:
    """The elements [start, stop) in segments, each of a known size on the wire."""

    def __init__(self, start: int, stop: int, codec: Codec) -> None:
        self.segments = [slice(*piece) for piece in pieces(start, stop, SEGMENT)]
        sizes = [codec.wire_bytes(s.stop - s.start) for s in self.segments]
        self.offsets = [0, *itertools.accumulate(sizes)]

    def empty(self) -> U8:
        """Memory for the bytes of all segments."""
        return np.empty(self.offsets[-1], np.uint8)

    def place(self, index: int) -> slice:
        """The place of segment `index` in those bytes."""
        return slice(self.offsets[index], self.offsets[index + 1])


class CompressedReduce(Operation):
    """A compressed reduction; see the module.

    `ranges[r]` is the range of elements that rank r owns. `commit` gets the flat
    result; without `gather` only the own range of it is valid, and it is the sum of
    the decoded contributions.
    """

    def __init__(
        self,
        peers: Sequence[int],
        descriptor: dict[str, Any],
        timeout: float,
        part: Contribution,
        *,
        ranges: Sequence[tuple[int, int]],
        gather: bool,
        spec: CompressionSpec,
    ) -> None:
        super().__init__(peers, descriptor, timeout)
        codec, source = spec.codec, part.source.reshape(-1)
        self._rank, self._size = part.rank, len(ranges)
        self._source: F32 = source.astype(np.float32, copy=False)
        self.bulk = self._source.nbytes
        self._codec = codec
        self._ranges = [Range(a, b, codec) for a, b in ranges]
        self._mine = self._ranges[part.rank]
        self._divisor = np.float32(len(ranges) if part.reduction.op == "mean" else 1)
        self._gather = gather
        self._memory = OperationFeedback.begin(spec, source.size)
        self._dtype, self._write = source.dtype, part.commit
        self._pool, self._lease = part.pool, ScratchLease(part.pool)
        new = part.out if source.dtype == np.float32 else None
        self._out: F32 = (
            self._lease.take(source.size, np.dtype(np.float32)) if new is None else new
        )
        self._late = gather and part.in_place and self._may_be_late
        """Whether sums of others are decoded at the commit, in the caller's array."""
        self._inbox = {(0, peer): self._mine.empty() for peer in self.peers}
        if gather:
            for peer in self.peers:
                self._inbox[1, peer] = self._ranges[peer].empty()
        self._next = dict.fromkeys(self._inbox, 0)
        self._added = 0
        self._to_encode = deque(self._outgoing())
        self._busy = True
        """Whether contributions or a sum are still to be encoded."""

    def begin(self) -> None:
        """Encode piece by piece, so that the loop serves others in between."""
        self._unsent += 1
        self._encode_next()

    def place(self, peer: int, header: Header) -> memoryview:
        stream = (header.step, peer)
        index = self._next.get(stream, -1)
        whose = self._stream_range(stream)
        if index < 0 or index >= len(whose.segments):
            raise ProtocolError(f"{self.name}: rank {peer} sent more than its part")
        room = whose.place(index)
        if (header.offset, header.length) != (room.start, room.stop - room.start):
            raise ProtocolError(
                f"{self.name}: rank {peer} sent {header.length} bytes at "
                f"{header.offset}, expected {room.stop - room.start} at {room.start}"
            )
        return self._inbox[stream][room].data

    def arrived(self, peer: int, header: Header, payload: memoryview) -> None:
        stream = (header.step, peer)
        index = self._next[stream]
        self._next[stream] = index + 1
        if header.step == 1:
            part = self._ranges[peer].segments[index]
            if not self._late:
                self._decode_into(
                    self._out[part], part, np.frombuffer(payload, np.uint8)
                )
        else:
            self._add_up()

    def complete(self) -> bool:
        return self._added == len(self._mine.segments) and all(
            self._next[stream] == len(self._stream_range(stream).segments)
            for stream in self._inbox
        )

    def commit(self) -> Any:
        if self._late:
            result = self._decoded_late()
        else:
            with np.errstate(all="ignore"):
                result = self._out.astype(self._dtype, copy=False)
        value = self._write(result)
        if self._memory is not None:
            self._memory.feedback.settle(self._memory.tag, self._memory.after)
            self._memory = None
        return value

    def release(self) -> None:
        if self._memory is not None:
            self._memory.feedback.settle(self._memory.tag, None)
        # After a failure a segment may still be decoded: its memory must stay.
        self._lease.settle(clean=self._voted and self.complete())

    @property
    def _may_be_late(self) -> bool:
        """Whether it is sure before the vote, and soon done, to decode what has come.

        Of several segments the first are decoded while the last ones come.
        """
        few = all(len(each.segments) < 2 for each in self._ranges)
        return few and self._codec.total and self._dtype == np.float32

    def _decoded_late(self) -> F32:
        """The caller's array with all sums: the own one, and those that have come."""
        result = self._source
        for rank, each in enumerate(self._ranges):
            for index, part in enumerate(each.segments):
                if rank == self._rank:
                    result[part] = self._out[part]
                else:
                    wire = self._inbox[1, rank][each.place(index)]
                    self._decode_into(result[part], part, wire)
        return result

    # Contributions.

    def _outgoing(self) -> Iterator[tuple[int, int]]:
        """(peer, index) of the segments to encode: all ranges advance together."""
        longest = max(len(r.segments) for r in self._ranges)
        for index in range(longest):
            for hop in range(1, self._size):
                peer = (self._rank + hop) % self._size
                if index < len(self._ranges[peer].segments):
                    yield peer, index

    def _encode_next(self) -> None:
        if self.over:
            return
        if self._to_encode:
            self._encode(*self._to_encode.popleft())
        if self._to_encode:
            self.group.later(0.0, self._encode_next)
            return
        self._busy = False
        self._add_up()
        self._was_sent()

    def _encode(self, peer: int, index: int) -> None:
        """Send a segment of the operand to its owner."""
        whose = self._ranges[peer]
        part = whose.segments[index]
        values = self._contribution(part)
        wire = self._codec.encode(values, self._seed(part))
        if self._memory is not None:
            self._memory.keep(part, values, self._decode(wire, part))
        self.send_data(peer, 0, whose.offsets[index], wire.data)

    def _contribution(self, part: slice) -> F32:
        """This member's operand with its residual; codecs leave it as it is."""
        if self._memory is None:
            return self._source[part]
        with np.errstate(all="ignore"):
            return self._source[part] + self._memory.before[part]

    # Sums.

    def _add_up(self) -> None:
        """Reduce the own segments with all contributions, one a turn of the loop."""
        arrived = (self._next[0, peer] for peer in self.peers)
        ready = min(arrived, default=len(self._mine.segments))
        if self._added < ready and not self._busy:
            self._busy = True
            self._unsent += 1
            self.group.later(0.0, self._add_next)

    def _add_next(self) -> None:
        if self.over:
            return
        try:
            self._add_segment(self._added)
        except ProtocolError as error:  # bytes that the codec cannot decode
            self.give_up(error)
            return
        self._added += 1
        self._busy = False
        self._add_up()
        self._was_sent()

    def _add_segment(self, index: int) -> None:
        part = self._mine.segments[index]
        place = self._mine.place(index)
        # The decoded sum goes there, too. Fresh memory would cost more than adding.
        total = self._out[part]
        if self._memory is not None and self._gather:
            total = np.empty_like(total)
        self._total(part, place, total)
        if not self._gather:
            return
        wire = self._codec.encode(total, self._seed(part))
        if np.may_share_memory(wire, total):
            wire = wire.copy()  # the decoded sum takes its place
        for peer in self.peers:
            self.send_data(peer, 1, place.start, wire.data)
        self._decode_into(self._out[part], part, wire)
        if self._memory is not None:
            self._memory.keep(part, total, self._out[part], float(self._divisor))

    def _total(self, part: slice, place: slice, total: F32) -> None:
        """The sum of all contributions to a part of the own range, or their mean."""
        # The first one that is decoded has room in `total`, the next ones elsewhere.
        room, own = total, self._contribution(part)
        spare = self._pool.take(total.size, total.dtype) if self._size > 2 else None
        with np.errstate(all="ignore"):
            before = None
            for rank in range(self._size):
                term = own
                if rank != self._rank:
                    wire, term = self._inbox[0, rank][place], room
                    self._codec.decode_into(term, wire, self._seed(part))
                    room = total if spare is None else spare
                before = term if before is None else np.add(before, term, out=total)
            if before is own:
                total[:] = own  # one member alone
            if self._divisor != 1:
                total /= self._divisor
        if spare is not None:
            self._pool.give(spare)

    def _stream_range(self, stream: tuple[int, int]) -> Range:
        step, peer = stream
        return self._mine if step == 0 else self._ranges[peer]

    def _decode(self, wire: U8, part: slice) -> F32:
        return self._codec.decode(wire, part.stop - part.start, self._seed(part))

    def _decode_into(self, room: F32, part: slice, wire: U8) -> None:
        """Decode the values of a part."""
        self._codec.decode_into(room, wire, self._seed(part))

    def _seed(self, part: slice) -> int:
        """The seed of a segment: equal on all members, different for each operation."""
        return (self.tag * 1_000_003 + self.seq) * 1_000_003 + part.start
