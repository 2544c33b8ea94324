"""Gossip pairs: the matching of the members in a round, and the group of a pair.

Every member draws the same matching from a seed, the round and the number of members,
without any message. With an odd number one member is alone in each round.
"""

import zlib
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError
from pcp.runtime.collectives.pending import Pending
from pcp.runtime.communicator.replica_check import chained


def partners(members: int, seed: int, round_: int) -> list[int | None]:
    """Each rank's partner; None for the single one of an odd number.

    Neighbours in a permutation by Philox, which is specified bit by bit, so that all
    versions draw alike.
    """
    draw = np.random.Philox(key=[seed % 2**64, round_ % 2**64]).random_raw(members)
    order = np.argsort(draw, kind="stable").tolist()
    found: list[int | None] = [None] * members
    for a, b in zip(order[::2], order[1::2], strict=False):
        found[a], found[b] = b, a
    return found


class Pair:
    """Two members of a group, as a group; or one of them alone.

    It has sums, which gossip needs; both members get the same bits. `turn` is the
    round: frames of another round are not matched with this one's.
    """

    def __init__(self, group: Any, partner: int | None, turn: int) -> None:
        self._group, self._partner, self._turn = group, partner, turn
        self._calls: Counter[str] = Counter()
        self.world_size = 1 if partner is None else 2
        self.rank = int(partner is not None and partner < group.rank)

    def all_reduced_async(
        self,
        array: NDArray,
        op: str = "sum",
        *,
        compression: str | None = None,
        donate: bool = False,
        tag: str = "",
    ) -> Pending:
        """The sum over the pair: a new array or, with `donate`, in place of `array`."""
        if op != "sum" or compression is not None:
            how = f" in {compression}" if compression else ""
            raise UsageError(f"a pair takes plain sums, not {op}{how}")
        array = array if donate else array.copy()
        if self._partner is None:
            pending = Pending()
            pending.set_result(array)
            return pending
        # Counted for each tag: members may begin sums of two tags in another order.
        self._calls[tag] += 1
        number = zlib.crc32(f"{self._turn}/{self._calls[tag]}/{tag}".encode())
        sent = self._group.send_async(array, self._partner, number)
        theirs = self._group.recv_async(np.empty_like(array), self._partner, number)

        def add(other: NDArray) -> Pending:
            # A sum of two is the same in both orders; the array must have been sent.
            return chained(sent, lambda _: np.add(array, other, out=array))

        return chained(theirs, add)
