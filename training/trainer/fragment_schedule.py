"""The timetable of the fragments of a streaming algorithm in a round.

A round of H inner steps has the times 0 (before the first step) to H. Fragment p of P
comes back at time H (p + 1) / P, rounded down, and leaves `delay` steps earlier, or as
the round begins if that is later: an exchange never spans two rounds, so that the
meaning of a commit does not depend on the algorithm. With equal H each fragment comes
back every H steps.

    H = 6, P = 2, delay = 1        0   1   2   3   4   5   6
    fragment 0                             ►───◄
    fragment 1                                         ►───◄
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """One fragment's times in a round, in inner steps done."""

    fragment: int
    leaves: int
    returns: int


def timetable(steps: int, fragments: int, delay: int, together: bool) -> list[Turn]:
    """Every fragment's turn, in the order in which they leave.

    `together`: all fragments come back at the end of the round.
    """
    returns = [
        steps if together else steps * (p + 1) // fragments for p in range(fragments)
    ]
    turns = [Turn(p, max(r - delay, 0), r) for p, r in enumerate(returns)]
    return sorted(turns, key=lambda turn: (turn.leaves, turn.fragment))
