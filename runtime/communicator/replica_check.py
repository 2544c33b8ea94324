"""The replica check: whether all members have equal bits, and the action if not.

Members exchange digests of 16 bytes. All members get the same digests, so all reach the
same verdict without another exchange:

* `trap`: StateMismatch on all of them, naming the ranks that differ;
* `report`: a warning in the log, and each member goes on with its own bits;
* `repair`: all members get the bits that most members have, those of the lowest rank
  among equally many.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import StateMismatch
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.param_sync import digest
from pcp.runtime.memory.buffer_pool import octets

_WORDS = 2
_log = logging.getLogger("pcp.runtime")


def digest_words(arrays: Sequence[NDArray], algo: str) -> NDArray:
    """The first 128 bits of a hash of the arrays' bytes in order, as two int64."""
    summary = hashlib.new(algo)
    for array in arrays:
        summary.update(octets(np.ascontiguousarray(array)))
    return np.frombuffer(summary.digest(), "<i8", _WORDS).astype(np.int64)


def parity(comm: Communicator, array: NDArray, action: str, tag: str) -> Pending:
    """A future of `array`, checked and repaired; see the module for `action`."""
    own = np.frombuffer(digest(array), np.uint8).copy()
    gathered = comm.all_gather_async(own.reshape(1, -1), tag=f"{tag}/digests")

    def settle(rows: NDArray) -> Pending | NDArray:
        held = [row.tobytes() for row in rows]
        source = elected(held)
        wrong = [rank for rank, bits in enumerate(held) if bits != held[source]]
        if not wrong:
            return array
        named = ", ".join(map(str, wrong))
        message = f"{tag}: rank {named} holds other bits than rank {source}"
        if action == "trap":
            raise StateMismatch(message)
        _log.warning("%s (%s)", message, action)
        if action == "report":
            return array
        return comm.broadcast_async(array, source, tag=f"{tag}/repair")

    return chained(gathered, settle)


def elected(held: Sequence[bytes]) -> int:
    """The lowest rank of the most frequent digest."""
    votes = Counter(held)
    return max(range(len(held)), key=lambda rank: (votes[held[rank]], -rank))


def chained(first: Pending, then: Callable[[Any], Any]) -> Pending:
    """A future of `then(value)`; of its value where `then` returns a future."""
    after = Pending()
    after.by, after.of = first.by, first.of

    def finish(done: Any) -> None:
        try:
            after.set_result(done.result())
        except BaseException as error:
            after.set_exception(error)

    def go_on(done: Any) -> None:
        try:
            value = then(done.result())
        except BaseException as error:
            after.set_exception(error)
            return
        if isinstance(value, Pending):
            value.add_done_callback(finish)
        else:
            after.set_result(value)

    first.add_done_callback(go_on)
    return after
