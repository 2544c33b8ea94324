"""Stragglers of a round with inner exchanges.

In such a round all members are done together, so the end of their steps does not show a
slow member. Their waiting does: the heartbeats of a member report how many exchanges it
has entered (the formation of the group is the first), and how long it has waited in the
last. Once a quorum has waited in an exchange for longer than the grace, or when the
deadline has passed, members that have not entered it are stragglers. Only a report from
after that moment makes a member a straggler, so a report on its way harms no member.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pcp.training.wire.messages import (
    AwaitedRanks,
    InnerExchangeReport,
)


@dataclass(slots=True)
class WaitReport:
    """The report in a member's heartbeat, and when it came."""

    at: float
    entered: int
    waited: float | None
    begun: bool = True
    """Whether the member is at this round, if by an earlier message."""
    awaits: AwaitedRanks | None = None
    """The ranks that it waits for; None: it is in no call with others."""
    alone: float | None = None
    """For how long it is where others are, and in no call with them."""


class StragglerDetection:
    """The wait reports of one attempt's members."""

    def __init__(self) -> None:
        self._reports: dict[str, WaitReport] = {}
        self.tells_of_company = False
        """Whether any member was in a call with others, or alone in one."""

    def heard(
        self,
        name: str,
        report: InnerExchangeReport | None,
        now: float,
        begun: bool = True,
        alone: float | None = None,
    ) -> None:
        """Note a member's report; None: the member is not in this attempt.

        `alone` is for how long it is then where others are not.
        """
        if report is None:
            self._reports[name] = WaitReport(now, -1, None, begun, alone=alone)
        else:
            self.tells_of_company |= report.awaits is not None or bool(report.alone)
            self._reports[name] = WaitReport(
                at=now,
                entered=report.entered,
                waited=report.waits,
                awaits=report.awaits,
                alone=report.alone,
            )

    def awaited(self, members: Collection[str]) -> list[str]:
        """Members that are not at this round, while others form its group."""
        said = self._of(members).items()
        here = [n for n, r in said if not r.begun]
        forming = here and any(not r.entered and r.waited is not None for _, r in said)
        return here if forming else []

    def lacked(
        self,
        members: Sequence[str],
        limits: Mapping[str, float],
        unreported: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> dict[str, set[str]]:
        """The members that most of the others lack in calls, and which do so.

        Each for as long as its own of the `limits`, in seconds. Of several only those
        that are lacked by most: who waits for one that hangs comes to no other call.
        Those in no call count too: one that says it waits is not most of them.
        `unreported` are members whose reports others wait for, each with those.
        """
        by = {name: {*those} for name, those in unreported.items()}
        for name, report in self._of(members).items():
            awaits = report.awaits
            if awaits is None:
                continue
            for rank in awaits.ranks:
                lacks = members[rank] if rank < len(members) else name
                if lacks != name and awaits.seconds >= limits[lacks]:
                    by.setdefault(lacks, set()).add(name)
        most = max(map(len, by.values()), default=0)
        return {
            name: those
            for name, those in by.items()
            if len(those) == most and 2 * most > len(members) - 1
        }

    def elsewhere(self, name: str) -> bool:
        """Whether a member is not at this attempt, as it says since this began."""
        report = self._reports.get(name)
        return report is not None and report.entered < 0

    def alone(self, name: str) -> float:
        """For how many seconds a member is where others are, in no call with them."""
        report = self._reports.get(name)
        return 0.0 if report is None else report.alone or 0.0

    def stragglers(
        self,
        members: Collection[str],
        quorum: int | None,
        grace: float,
        earliest: float,
        deadline: float,
    ) -> list[str]:
        """Members for which the others have waited too long.

        From `earliest` on a quorum may leave members out; at `deadline` every member
        that holds others up is left out. Times are those of the reports.
        """
        if not (quorum or math.isfinite(deadline)):
            return []
        said = self._of(members)
        waiting = [r for r in said.values() if r.waited is not None]
        if not waiting:
            return []
        latest = max(r.entered for r in waiting)
        there = [r for r in waiting if r.entered == latest]
        since = sorted(r.at - (r.waited or 0.0) for r in there)
        end = deadline
        if quorum and len(since) >= quorum:
            end = min(end, max(since[quorum - 1] + grace, earliest))
        if not math.isfinite(end):
            return []
        return [n for n, r in said.items() if r.entered < latest and r.at >= end]

    def _of(self, members: Collection[str]) -> dict[str, WaitReport]:
        """The reports of these members, each of which is looked up once."""
        there = set(members)
        return {n: r for n, r in self._reports.items() if n in there}
