"""The conduct of members: their faults, and quarantine for repeated ones.

A member with one fault may have had a flipped bit: it fetches the right state. With two
faults within `FORGIVEN` rounds it is quarantined: the ledger has its name, and no
shepherd of the run admits it again.

When a member reports that it cannot reach another one, either may be at fault. If most
of the others report the same peer, that peer is removed. Else the member with more such
failures so far is removed, so one that cannot reach several goes before them; and of
equals, the one that was not removed the last time.
"""

from collections.abc import Mapping, Sequence, Set

FORGIVEN = 8
"""Rounds after which a fault is forgotten."""


def quarantined(name: str, reason: str) -> str:
    """The refusal of a worker of that name."""
    return f"{name} is quarantined in this run: {reason}"


class Conduct:
    """The faults of a run's members, by name."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._quarrels: dict[str, set[str]] = {}
        self._gone: str | None = None

    def wrong(self, name: str, round_: int) -> bool:
        """Note a fault in a round; whether there was one in the rounds just before."""
        before, self._last[name] = self._last.get(name), round_
        return before is not None and 0 < round_ - before < FORGIVEN

    def to_go(
        self, members: Sequence[str], accused: Mapping[str, Set[str]]
    ) -> tuple[str, str]:
        """The member to remove from a group that cannot exchange, and why.

        `accused` are members that others cannot reach, each with those others.
        """
        worst = max(accused, key=lambda name: len(accused[name]))
        by = accused[worst] - {worst}
        if len(by) > 1 and 2 * len(by) > len(members) - 1:
            return worst, "its peers cannot reach it"
        accuser = min(by, default=worst)
        for one, those in accused.items():
            for other in those - {one}:
                self._quarrels.setdefault(one, set()).add(other)
                self._quarrels.setdefault(other, set()).add(one)
        known = [name for name in (worst, accuser) if name in members]
        name = max(
            known, key=lambda n: (len(self._quarrels.get(n, ())), n != self._gone)
        )
        self._gone = name
        if name == worst:
            return name, "its peers cannot reach it"
        return name, f"it alone cannot reach {worst}"
