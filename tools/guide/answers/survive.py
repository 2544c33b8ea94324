"""Chapter 4: kill it, and make it survive.

`pcp guide check 4` runs your functions.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class PeerLost(Exception):
    """A member is gone."""


def all_or_nothing(reduce: Callable[[Array], None], array: Array) -> None:
    """Run `reduce(array)`, which adds in place, so that a failure leaves no trace.

    When `reduce` raises PeerLost, `array` gets back the bytes that it had, and the
    error goes on to the caller.
    """
    # (answer
    before = array.copy()
    try:
        reduce(array)
    except PeerLost:
        array[:] = before
        raise
    # answer)


def outcome(votes: Mapping[int, str], members: set[int]) -> str:
    """What became of an operation, decided once for all: "done", "failed", "open".

    `votes` has each heard member's vote: "done" (it has completed its part) or "abort"
    (it has given it up). One abort makes it failed. It is done when all members voted
    done. Before that it is open: nobody may act as if it were decided.
    """
    # (answer
    if "abort" in votes.values():
        return "failed"
    return "done" if set(votes) == members else "open"
    # answer)


def next_epoch(members: list[int], lost: set[int], joining: list[int]) -> list[int]:
    """The members of the next epoch.

    Survivors keep their order; newcomers come behind them, each once.
    """
    # (answer
    kept = [one for one in members if one not in lost]
    return list(dict.fromkeys([*kept, *joining]))
    # answer)
