"""The leading shepherd of a run by a lease in etcd, and the copy of its ledger there.

The leader's key in etcd is deleted when its lease ends. A shepherd that has all lines
of etcd may create the key anew; it leads in a term that is the revision of that
creation. A line counts once etcd has taken it, and etcd takes lines from the holder of
the key alone: so lines of two leaders never mix, whatever their clocks do. A leader
renews its lease, and by its own clock gives it up `SLACK` seconds before etcd can: no
message of it meets one of a later leader. The time of a lease counts from when it was
asked for.

    follower ──nobody leads, and all lines are here──► asks for the lease
       ▲                                                     │ etcd says yes
       └──the lease's time is over, or etcd takes no line──leader

The machine is pure but for the ledger copy: each event gives effects in their order,
each of which but `Lead`, `Deposed` and `Over` is a request to etcd, with one answer or
none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pcp.training.coordinator.standby.election import (
    Deposed,
    Lead,
    LineLog,
    Over,
)

SECONDS = 2
"""The length of a lease that is asked for; etcd may give more."""
SLACK = 0.5
"""Seconds of a lease that its holder does not use, since clocks drift."""
POLL = 0.2
"""Seconds between two looks of a shepherd that stands by."""
RENEW = 0.4
"""Seconds between two renewals of the leader's."""
AT_ONCE = 64
"""The most lines of one request or answer."""


class CutLog(LineLog, Protocol):
    """A copy of the ledger that can lose its end again."""

    def cut(self, count: int) -> None:
        """Keep `count` lines; `StateMismatch` if later ones counted."""
        ...


@dataclass(frozen=True, slots=True)
class Look:
    """Ask for the lines from a number on, and for the leader."""

    start: int


@dataclass(frozen=True, slots=True)
class LookAnswer:
    """The answer to `Look`: the values in etcd at one revision."""

    leader: str | None
    start: int
    lines: Sequence[str]
    more: bool = False
    """Whether etcd has lines behind these."""
    over: str | None = None
    """Why the leader has ended the run."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """Ask for the lead, if there is no leader and etcd has just these lines."""

    count: int
    last: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Ask for the whole time of the lease again."""


@dataclass(frozen=True, slots=True)
class AppendLines:
    """Write lines from `start` on, if the leader of `term` still leads.
    The lines may be there already, if an earlier answer was lost.
    """

    term: int
    start: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Finish:
    """Write that the run is over, for the shepherds that stand by."""

    term: int
    reason: str


Request = Look | Campaign | Renew | AppendLines | Finish
Effect = Request | Lead | Deposed | Over


class LeaderLease:
    """One shepherd among those that share a key of etcd. Not thread-safe.

    `log` is its ledger copy. A request without an answer is not sent again: the shell
    calls `lost` when no answer can come any more.
    """

    def __init__(self, log: CutLog, now: float) -> None:
        self.log = log
        self.leads = False
        self.leader: str | None = None
        """The leader in etcd's last answer."""
        self.term = 0
        self.committed = 0
        """The number of lines that count: etcd has them."""
        self.until = now
        """The end of the lease, by the clock of this process."""
        self._known, self._back = log.count, 1
        """How many lines may be etcd's too, and how far to go back if they are not.
        """
        self._at = now
        self._asked: set[type[Request]] = set()
        self._goes_on = False
        self._effects: list[Effect] = []

    def holds(self, now: float) -> bool:
        """Whether this shepherd leads, and no other one can lead now."""
        return self.leads and now < self.until

    # What comes in ----------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        if self.leads:
            self._expire(now)
        if self.leads:
            if now >= self._at and self._ask(Renew()):
                self._at = now + RENEW
            self._send()
        elif now >= self._at and Campaign not in self._asked:
            if self._ask(Look(max(0, self._known - 1))):
                self._at = now + POLL
        return self._taken()

    def seen(self, said: LookAnswer) -> list[Effect]:
        """etcd's answer to `Look`; `StateMismatch` if etcd lost lines that counted."""
        self._asked.discard(Look)
        if self.leads:
            return []
        self.leader = said.leader
        if said.over is not None and self._goes_on:
            self._effects.append(Over(said.over))
            return self._taken()
        # A run that had ended before this process began is continued.
        self._goes_on = said.over is None
        if not self._follow(said) or said.more:
            self._ask(Look(max(0, self._known - 1)))  # at once: etcd has more
        elif said.leader is None:
            count = self.log.count
            last = self.log.lines(count - 1, 1)[0] if count else ""
            self._ask(Campaign(count, last))
        return self._taken()

    def campaigned(
        self, term: int | None, asked_at: float, seconds: float, now: float
    ) -> list[Effect]:
        """etcd's answer to `Campaign`: the term, None without the lead; and the lease.

        The lease holds for `seconds` from `asked_at`. The ledger copy must be as it was
        when the request was sent.
        """
        self._asked.discard(Campaign)
        if term is not None:
            self.term, self.leads = term, True
            self.until = asked_at + seconds - SLACK
            self.committed, self._at = self.log.count, now
            self._effects.append(Lead(term))
            self._expire(now)
        return self._taken()

    def renewed(self, seconds: float, asked_at: float, now: float) -> list[Effect]:
        """The lease holds so long from when it was asked for; 0: it is gone."""
        self._asked.discard(Renew)
        if self.leads:
            if seconds > 0:
                self.until = max(self.until, asked_at + seconds - SLACK)
                self._expire(now)
            else:
                self._depose("its lease in etcd is gone")
        return self._taken()

    def appended(self, said: AppendLines, taken: bool) -> list[Effect]:
        """etcd's answer to `AppendLines`: whether it has them, of this leader."""
        self._asked.discard(AppendLines)
        if self.leads and said.term == self.term:
            if taken:
                self.committed = max(self.committed, said.start + len(said.lines))
                self._send()
            else:
                self._depose("etcd took a line of another shepherd")
        return self._taken()

    def lost(self, request: Request) -> None:
        """A request has no answer; etcd may have carried it out."""
        self._asked.discard(type(request))

    def grew(self, now: float) -> list[Effect]:
        """The leader wrote lines."""
        if self.holds(now):
            self._send()
        return self._taken()

    def ended(self, reason: str) -> list[Effect]:
        """The leader ends the run: no shepherd takes it over."""
        if self.leads:
            self._effects.append(Finish(self.term, reason))
        return self._taken()

    # ----------------------------------------------------------------------------

    def _follow(self, said: LookAnswer) -> bool:
        """Make the copy as etcd has it; False if earlier lines must be seen first."""
        log = self.log
        own = list(log.lines(said.start, len(said.lines)))
        like = 0
        while like < len(own) and own[like] == said.lines[like]:
            like += 1
        if self._known and not (like and said.start == self._known - 1):
            # Lines of a leader that had lost its lease: further back with every look.
            self._known = max(0, self._known - self._back)
            self._back *= 2
            return False
        end = said.start + len(said.lines)
        if like < len(own):
            log.cut(said.start + like)
        elif not said.more:
            log.cut(end)
        log.take(said.start, said.lines)
        self._known, self._back = end, 1
        return True

    def _send(self) -> None:
        if self.committed < self.log.count:
            lines = tuple(self.log.lines(self.committed, AT_ONCE))
            self._ask(AppendLines(self.term, self.committed, lines))

    def _expire(self, now: float) -> None:
        if now >= self.until:
            self._depose("its lease was not renewed in time")

    def _depose(self, reason: str) -> None:
        self.leads = False
        self._known, self._back = self.committed, 1
        self._effects.append(Deposed(reason))

    def _ask(self, request: Request) -> bool:
        if type(request) in self._asked:
            return False
        self._asked.add(type(request))
        self._effects.append(request)
        return True

    def _taken(self) -> list[Effect]:
        taken, self._effects = self._effects, []
        return taken
