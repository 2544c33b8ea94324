"""Which of a run's shepherds leads, by a lease in etcd, and that etcd has its ledger.

The leader's key in etcd goes when its lease ends; whoever has all lines that are there
may make it anew, and leads in a term that is the revision at which it was made. A line
counts once etcd took it, which it does from the holder of that key alone: so nothing of
two leaders is ever mixed, whatever their clocks do. A leader renews its lease, and by
its own clock gives it up `SLACK` seconds before etcd could: it gives no order that a
later leader's could meet. A lease is counted from when it was asked for.

    follower ──nobody leads, and all lines are here──► asks for the lease
       ▲                                                     │ etcd says yes
       └──the lease's time is over, or etcd takes no line──leader

Pure but for the copy of the ledger: each event gives effects in their order, each of
which but `Lead`, `Deposed` and `Over` is a question to etcd, with one answer or none.
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
"""Of a lease, as it is asked for; etcd may give more."""
SLACK = 0.5
"""Seconds of a lease that its holder does not use: clocks run unlike."""
POLL = 0.2
"""Seconds between two looks of a shepherd that stands by."""
RENEW = 0.4
"""Seconds between two renewals of the leader's."""
AT_ONCE = 64
"""Lines of one question or answer."""


class CutLog(LineLog, Protocol):
    """A copy of the ledger that can lose its end again."""

    def cut(self, count: int) -> None:
        """Keep so many lines; `StateMismatch` if others counted that would go."""
        ...


@dataclass(frozen=True, slots=True)
class Look:
    """What lines there are from a number on, and who leads."""

    start: int


@dataclass(frozen=True, slots=True)
class Seen:
    """The answer: what etcd had at one revision."""

    leader: str | None
    start: int
    lines: Sequence[str]
    more: bool = False
    """Whether there are lines behind these."""
    over: str | None = None
    """Why the leader has ended the run."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """A new lease, and the lead: if nobody has it, and there are just these lines."""

    count: int
    last: str


@dataclass(frozen=True, slots=True)
class Renew:
    """The lease, for its whole time again."""


@dataclass(frozen=True, slots=True)
class AppendLines:
    """Lines from `start` on, from the leader of a term, if it leads still.

    They may be there already, if an earlier answer was lost.
    """

    term: int
    start: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Finish:
    """Tell those that stand by that the run is over."""

    term: int
    reason: str


Question = Look | Campaign | Renew | AppendLines | Finish
Effect = Question | Lead | Deposed | Over


class LeaderLease:
    """One shepherd among those that share a key of etcd. Not thread-safe.

    `log` is its copy of the ledger. What it was asked and has not answered is not asked
    again: the shell says `lost` when no answer comes any more.
    """

    def __init__(self, log: CutLog, now: float) -> None:
        self.log = log
        self.leads = False
        self.leader: str | None = None
        """As etcd said last."""
        self.term = 0
        self.committed = 0
        """Lines that count: etcd has them."""
        self.until = now
        """When the lease is over, by the clock of this process."""
        self._known, self._back = log.count, 1
        """Lines that may be etcd's, and how many fewer are asked for if they are not.
        """
        self._at = now
        self._asked: set[type[Question]] = set()
        self._goes_on = False
        self._effects: list[Effect] = []

    def holds(self, now: float) -> bool:
        """Whether this shepherd leads, and nobody else can by now."""
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

    def seen(self, said: Seen) -> list[Effect]:
        """What etcd has; `StateMismatch` if it lost what it had."""
        self._asked.discard(Look)
        if self.leads:
            return []
        self.leader = said.leader
        if said.over is not None and self._goes_on:
            self._effects.append(Over(said.over))
            return self._taken()
        # What had ended when this process began is gone on with.
        self._goes_on = said.over is None
        if not self._follow(said) or said.more:
            self._ask(Look(max(0, self._known - 1)))  # at once: there is more to learn
        elif said.leader is None:
            count = self.log.count
            last = self.log.lines(count - 1, 1)[0] if count else ""
            self._ask(Campaign(count, last))
        return self._taken()

    def campaigned(
        self, term: int | None, asked_at: float, seconds: float, now: float
    ) -> list[Effect]:
        """This shepherd leads in a term, for so long from when it asked; or does not.

        The copy must be as it was when it asked.
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
        """Whether etcd has these lines, from us."""
        self._asked.discard(AppendLines)
        if self.leads and said.term == self.term:
            if taken:
                self.committed = max(self.committed, said.start + len(said.lines))
                self._send()
            else:
                self._depose("etcd took a line of another shepherd")
        return self._taken()

    def lost(self, question: Question) -> None:
        """No answer came: it may have been done, or not."""
        self._asked.discard(type(question))

    def grew(self, now: float) -> list[Effect]:
        """The leader wrote lines."""
        if self.holds(now):
            self._send()
        return self._taken()

    def ended(self, reason: str) -> list[Effect]:
        """The leader ends the run: nobody takes it over."""
        if self.leads:
            self._effects.append(Finish(self.term, reason))
        return self._taken()

    # ----------------------------------------------------------------------------

    def _follow(self, said: Seen) -> bool:
        """Have the lines as etcd has them; False if those before must be seen first."""
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

    def _ask(self, question: Question) -> bool:
        if type(question) in self._asked:
            return False
        self._asked.add(type(question))
        self._effects.append(question)
        return True

    def _taken(self) -> list[Effect]:
        taken, self._effects = self._effects, []
        return taken
