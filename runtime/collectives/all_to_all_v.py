"""An all_to_all whose parts have any size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import ProtocolError, UsageError
from pcp.runtime.collectives.build import Seat
from pcp.runtime.collectives.direct import Exchange
from pcp.runtime.collectives.operation import Operation, Pending
from pcp.runtime.collectives.submit import Posting, Seconds
from pcp.runtime.collectives.validation import count_of
from pcp.runtime.communicator.array_interop import foreign
from pcp.runtime.memory.buffer_pool import checked, octets


class Uneven(Posting):
    """The part of a communicator whose members send parts of any size."""

    def exchange(
        self, parts: Sequence[NDArray], *, tag: str = "", timeout: Seconds = None
    ) -> list[NDArray]:
        """`parts[j]` goes to member j; the value is what came from each member.

        All parts of all members have one type and one shape beyond the first
        dimension, which may differ and may be 0.
        """
        return self.exchange_async(parts, tag=tag, timeout=timeout).result()

    @foreign()
    def exchange_async(
        self, parts: Sequence[NDArray], *, tag: str = "", timeout: Seconds = None
    ) -> Pending:
        """As `exchange`, at once."""
        return self._post(exchange(self._seat, parts, self._patience(timeout)), tag)


def exchange(seat: Seat, parts: Sequence[NDArray], timeout: float) -> Operation:
    """Each member's part to it; the parts it sent to us."""
    parts = [checked(part, "exchange") for part in parts]
    kinds = {(part.dtype, part.shape[1:]) for part in parts if part.ndim}
    if (
        len(parts) != seat.world_size
        or len(kinds) != 1
        or not all(part.ndim for part in parts)
    ):
        raise UsageError(
            f"exchange takes one array for each of {seat.world_size} members, alike "
            f"but for the first dimension"
        )
    ((dtype, rest),) = kinds
    found = {seat.rank: parts[seat.rank]}

    def room(peer: int, theirs: dict[str, Any]) -> memoryview:
        rows = theirs.get("rows")
        if not isinstance(rows, list) or len(rows) != seat.world_size:
            raise ProtocolError(f"rank {peer} exchanges {rows!r} rows")
        found[peer] = np.empty((count_of(rows[seat.rank]), *rest), dtype)
        return octets(found[peer])

    def finish() -> list[NDArray]:
        found[seat.rank] = found[seat.rank].copy()
        return [found[rank] for rank in range(seat.world_size)]

    return Exchange(
        seat.peers,
        {
            "kind": "exchange",
            "dtype": dtype.name,
            "row shape": list(rest),
            "rows": [len(part) for part in parts],
        },
        timeout,
        outgoing={peer: octets(parts[peer]) for peer in seat.peers},
        room=room,
        commit=finish,
        free=frozenset({"rows"}),
    )
