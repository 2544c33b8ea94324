"""Which of a run's shepherds leads, and that the others have its ledger, as in Raft.

An odd number of voters, each with a copy of the ledger. One that hears from no leader
asks whether most would vote for it; if so it asks for votes in a new term, and leads
with those of most: of voters that know of no later term, have not voted in this one,
and whose copy is not ahead of its own. So a voter that was cut off, and comes back,
begins no term that ends another's lead. The
leader sends its lines; a line counts once most have it and one of its own term is among
those. A leader that does not hear from most for a while leads no longer: with less than
half of the voters there is no leader.

Pure but for the copy of the ledger (`LineLog`): `step(event, now)` gives effects in
their order; what it decides in a term is on the disk (`Persist`) before it is said.

    learner ──the leader's lines are here──► follower ──silence, and ──► candidate
       ▲                                        ▲  ▲    most would vote    │ most vote
    an empty folder                             │  └──a later term─────────┤
                                                └──most are silent──── leader

A voter whose folder is empty may have voted, and lost that: it is a learner, which
votes for nobody, until a leader has brought it up to date; or until all others say that
nothing was ever written. (Ongaro and Ousterhout, "In search of an understandable
consensus algorithm", 2014; the learner is "Consensus: bridging theory and practice",
2014, chapter 4, and the question before the vote its 9.6.)
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pcp.training.wire.shepherd_messages import (
    Blank,
    Farewell,
    Lines,
    LinesTaken,
    Said,
    Vote,
    VoteRequest,
)

BEAT = 0.15
"""Seconds between two messages of a leader."""
SILENCE = (0.8, 1.6)
"""Seconds of silence after which a voter stands for election, drawn anew each time."""
AT_ONCE = 256
"""Lines of one message."""
LEARNER, FOLLOWER, CANDIDATE, LEADER = "learner", "follower", "candidate", "leader"


class LineLog(Protocol):
    """A copy of the ledger: lines, each with the hash of the one before."""

    @property
    def count(self) -> int:
        """How many lines there are."""
        ...

    def term(self, count: int) -> int:
        """The term of the last of so many lines; 0 of none."""
        ...

    def hash(self, count: int) -> str:
        """The hash of the last of so many lines."""
        ...

    def lines(self, start: int, most: int) -> Sequence[str]:
        """Lines from a number on."""
        ...

    def take(self, start: int, lines: Sequence[str]) -> None:
        """Have these lines from `start` on, in place of others: on the disk."""
        ...


@dataclass(frozen=True, slots=True)
class Persist:
    """Have this on the disk before anything else is done."""

    term: int
    voted_for: int | None


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message to a voter; it may get lost."""

    to: int
    message: Said


@dataclass(frozen=True, slots=True)
class Lead:
    """This voter leads from now on."""

    term: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """This voter leads no longer."""

    reason: str


@dataclass(frozen=True, slots=True)
class Over:
    """The leader has ended the run."""

    reason: str


Effect = Persist | Say | Lead | Deposed | Over


class Election:
    """One voter, by its number among `voters`. Not thread-safe; never blocks.

    `persisted` is what was on the disk: term and vote; None: nothing.
    """

    def __init__(
        self,
        me: int,
        voters: int,
        log: LineLog,
        persisted: tuple[int, int | None] | None,
        now: float,
        draw: random.Random,
    ) -> None:
        self.me, self.log = me, log
        self.peers = [number for number in range(voters) if number != me]
        self.most = voters // 2 + 1
        self.term, self.voted_for = persisted or (0, None)
        self.role = LEARNER if persisted is None else FOLLOWER
        self.leader: int | None = None
        self.committed = 0
        """Lines that count: most voters have them."""
        self._draw, self._heard = draw, now
        self._until = self._stands_at(now)
        self._beaten = now - BEAT
        self._votes: set[int] = set()
        self._would: set[int] | None = None
        """Voters that would vote for this one, while it asks."""
        self._blank: dict[int, int] = {}
        """Terms of voters that say that nothing was ever written."""
        self._next: dict[int, int] = {}
        self._match: dict[int, int] = {}
        self._answered: dict[int, float] = {}
        self._effects: list[Effect] = []
        if not self.peers:
            self.role = FOLLOWER

    def holds(self, now: float) -> bool:
        """Whether this voter leads; most may be silent since a moment ago."""
        del now
        return self.role == LEADER

    # What comes in ----------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Time has passed."""
        if self.role == LEADER:
            self._lead(now)
        elif self.role == LEARNER:
            if now - self._beaten >= BEAT:
                self._beaten = now
                self._tell_all(Blank(sender=self.me, term=self.term, asks=True))
        elif now >= self._until:
            self._ask(now)
        return self._taken()

    def heard(self, message: Said, now: float) -> list[Effect]:
        """A voter says something."""
        if message.sender not in self.peers:
            return []
        if isinstance(message, VoteRequest) and self._content(message, now):
            return []  # there is a leader: who lost touch does not unseat it
        trial = isinstance(message, VoteRequest) and message.trial
        if message.term > self.term and not trial:
            self._enter(message.term, now)
        match message:
            case VoteRequest():
                self._on_request(message, now)
            case Vote():
                self._on_vote(message, now)
            case Lines():
                self._on_lines(message, now)
            case LinesTaken():
                self._on_taken(message, now)
            case Blank():
                self._on_blank(message, now)
            case Farewell():
                if message.term == self.term:
                    self._effects.append(Over(message.reason))
        return self._taken()

    def grew(self, now: float) -> list[Effect]:
        """The leader wrote lines."""
        if self.role == LEADER:
            self._count()
            self._send_lines(now)
        return self._taken()

    def ended(self, reason: str) -> list[Effect]:
        """The leader ends the run: nobody takes it over."""
        if self.role == LEADER:
            self._tell_all(Farewell(sender=self.me, term=self.term, reason=reason))
        return self._taken()

    # Elections --------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        """Whether most would vote for this one; nothing changes by that."""
        self._would = {self.me}
        self._until = self._stands_at(now)
        self._request(trial=True)
        self._encouraged(now)

    def _encouraged(self, now: float) -> None:
        if self._would is not None and len(self._would) >= self.most:
            self._stand(now)

    def _stand(self, now: float) -> None:
        self.role, self.leader, self._votes = CANDIDATE, None, {self.me}
        self._would = None
        self._vote(self.term + 1, self.me)
        self._until = self._stands_at(now)
        self._request(trial=False)
        self._elected(now)

    def _request(self, *, trial: bool) -> None:
        count = self.log.count
        request = VoteRequest(
            sender=self.me,
            term=self.term,
            last=self.log.term(count),
            count=count,
            trial=trial,
        )
        self._tell_all(request)

    def _content(self, message: VoteRequest, now: float) -> bool:
        """Whether a leader was heard too lately to think of another."""
        if self.role == LEADER:
            unseats = message.trial or message.term > self.term
            return unseats and self._reached(now) >= self.most
        return self.leader is not None and now - self._heard < SILENCE[0]

    def _on_request(self, said: VoteRequest, now: float) -> None:
        count = self.log.count
        behind = (said.last, said.count) < (self.log.term(count), count)
        able = self.role != LEARNER and not behind
        if said.trial:  # as one would vote in a term that is not there yet
            granted = able and said.term >= self.term
            term = said.term if granted else self.term
            answer = Vote(sender=self.me, term=term, granted=granted, trial=True)
            self._say(said.sender, answer)
            return
        free = self.voted_for in (None, said.sender)
        granted = said.term == self.term and free and able
        if granted:
            self._vote(self.term, said.sender)
            self._until = self._stands_at(now)
        self._say(said.sender, Vote(sender=self.me, term=self.term, granted=granted))

    def _on_vote(self, said: Vote, now: float) -> None:
        if said.term != self.term or not said.granted:
            return
        if said.trial:
            if self._would is not None:
                self._would.add(said.sender)
                self._encouraged(now)
        elif self.role == CANDIDATE:
            self._votes.add(said.sender)
            self._elected(now)

    def _elected(self, now: float) -> None:
        if self.role != CANDIDATE or len(self._votes) < self.most:
            return
        self.role, self.leader, self._would = LEADER, self.me, None
        self._next = dict.fromkeys(self.peers, self.log.count)
        self._match = dict.fromkeys(self.peers, 0)
        self._answered = dict.fromkeys(self.peers, now)
        self._effects.append(Lead(self.term))
        self._send_lines(now)

    def _enter(self, term: int, now: float) -> None:
        """A later term: whoever led, or stood, in the one before does not any more."""
        led = self.role == LEADER
        self._vote(term, None)
        self.leader = self._would = None
        if self.role != LEARNER:
            self.role = FOLLOWER
        if led:
            self._until = self._stands_at(now)
            self._effects.append(Deposed(f"term {term} has begun"))

    # Lines ------------------------------------------------------------------------

    def _lead(self, now: float) -> None:
        if self._reached(now) < self.most:
            self.role, self.leader = FOLLOWER, None
            self._until = self._stands_at(now)
            self._effects.append(Deposed("most of the other shepherds are silent"))
        elif now - self._beaten >= BEAT:
            self._send_lines(now)

    def _reached(self, now: float) -> int:
        """How many voters answered lately; a leader counts itself."""
        return 1 + sum(now - at < SILENCE[0] for at in self._answered.values())

    def _send_lines(self, now: float) -> None:
        self._beaten = now
        for peer in self.peers:
            self._send_to(peer)

    def _send_to(self, peer: int) -> None:
        start = self._next[peer]
        lines = tuple(self.log.lines(start, AT_ONCE))
        message = Lines(
            sender=self.me,
            term=self.term,
            start=start,
            before=self.log.hash(start),
            lines=lines,
            end=self.log.count,
            committed=self.committed,
        )
        self._say(peer, message)

    def _on_lines(self, said: Lines, now: float) -> None:
        if said.term < self.term:
            self._answer(said, False, self.log.count)
            return
        if self.role == CANDIDATE:
            self.role = FOLLOWER
        self.leader, self._heard, self._would = said.sender, now, None
        self._until = self._stands_at(now)
        log = self.log
        if said.start > log.count or log.hash(said.start) != said.before:
            # From where both may agree: further back with every answer.
            back = max(0, min(log.count, said.start - max(1, said.start // 2)))
            self._answer(said, False, back)
            return
        log.take(said.start, said.lines)
        reached = said.start + len(said.lines)
        self.committed = max(self.committed, min(said.committed, reached))
        if self.role == LEARNER and reached >= said.end:
            self.role = FOLLOWER
            self._vote(self.term, said.sender)  # it may have voted, and lost that
        self._answer(said, True, reached)

    def _answer(self, said: Lines, taken: bool, count: int) -> None:
        answer = LinesTaken(sender=self.me, term=self.term, taken=taken, count=count)
        self._say(said.sender, answer)

    def _on_taken(self, said: LinesTaken, now: float) -> None:
        if self.role != LEADER or said.term != self.term:
            return
        peer = said.sender
        self._answered[peer] = now
        if not said.taken:
            self._next[peer] = min(said.count, self.log.count)
            self._send_to(peer)
            return
        self._match[peer] = max(self._match[peer], said.count)
        self._next[peer] = max(self._next[peer], self._match[peer])
        self._count()
        if said.count < self.log.count:
            self._next[peer] = said.count
            self._send_to(peer)

    def _count(self) -> None:
        """What most have counts, once a line of this term is among it."""
        have = sorted([self.log.count, *self._match.values()], reverse=True)
        reached = have[self.most - 1]
        if reached > self.committed and self.log.term(reached) == self.term:
            self.committed = reached

    # Folders that are empty -------------------------------------------------------

    def _on_blank(self, said: Blank, now: float) -> None:
        nothing = not self.log.count
        if said.asks and nothing:
            self._say(said.sender, Blank(sender=self.me, term=self.term))
        elif not said.asks and self.role == LEARNER and nothing:
            self._blank[said.sender] = said.term
            if len(self._blank) == len(self.peers):
                self.role = FOLLOWER
                self._vote(max(self.term, *self._blank.values()) + 1, None)
                self._until = self._stands_at(now)

    # ----------------------------------------------------------------------------

    def _vote(self, term: int, voted_for: int | None) -> None:
        self.term, self.voted_for = term, voted_for
        if self.role != LEARNER:  # what a learner knows is not enough to vote again
            self._effects.append(Persist(term, voted_for))

    def _stands_at(self, now: float) -> float:
        return now + self._draw.uniform(*SILENCE)

    def _tell_all(self, message: Said) -> None:
        for peer in self.peers:
            self._say(peer, message)

    def _say(self, to: int, message: Said) -> None:
        self._effects.append(Say(to, message))

    def _taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
