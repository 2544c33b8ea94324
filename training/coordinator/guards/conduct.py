"""What members did wrong before: who is so again and again is let go.

A member that is wrong once may have had a flipped bit: it is put right. Twice within
`FORGIVEN` rounds, it is quarantined: the ledger has its name, and no shepherd of the
run takes it in again.

Of two members of which one says that it cannot reach the other, either may be at fault.
Where most say so, it is the one they name. Else it is the one who fell out with more of
the others so far; and of equals, the one who did not have to go the last time.
"""

from collections.abc import Mapping, Sequence, Set

FORGIVEN = 8
"""Rounds after which a fault is forgotten."""


def quarantined(name: str, reason: str) -> str:
    """What a worker of that name hears when it comes."""
    return f"{name} is quarantined in this run: {reason}"


class Conduct:
    """The faults of a run's members, by name."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._quarrels: dict[str, set[str]] = {}
        self._gone: str | None = None

    def wrong(self, name: str, round_: int) -> bool:
        """Note a fault in a round; whether there was one in a round not long before."""
        before, self._last[name] = self._last.get(name), round_
        return before is not None and 0 < round_ - before < FORGIVEN

    def to_go(
        self, members: Sequence[str], accused: Mapping[str, Set[str]]
    ) -> tuple[str, str]:
        """The member that leaves a group that cannot exchange, and why.

        `accused` are members that others cannot reach, each with those others.
        """
        worst = max(accused, key=lambda name: len(accused[name]))
        by = accused[worst] - {worst}
        if len(by) > 1 and 2 * len(by) >= len(members) - 1:
            return worst, "its peers cannot reach it"
        accuser = min(by, default=worst)
        for one, other in ((worst, accuser), (accuser, worst)):
            self._quarrels.setdefault(one, set()).add(other)
        known = [name for name in (worst, accuser) if name in members]
        name = max(known, key=lambda n: (len(self._quarrels[n]), n != self._gone))
        self._gone = name
        if name == worst:
            return name, "its peers cannot reach it"
        return name, f"it alone cannot reach {worst}"
