"""The election of a run's leading shepherd, and the copies of its ledger, as in Raft.

There is an odd number of voters, each with a ledger copy. A voter that receives nothing
from a leader asks first whether most voters would vote for it (a pre-vote). If so, it
asks for votes in a new term, and leads with the votes of most. A voter gives its vote
if it knows of no later term, has not voted in this one, and its copy is not ahead of
the candidate's. So a voter that was cut off, and comes back, begins no term that ends
another's lead. The leader sends its lines; a line counts once most voters have it and a
line of the leader's own term. A leader without answers from most for a while leads no
longer: with less than half of the voters there is no leader.

The machine is pure but for the ledger copy (`LineLog`): each event gives effects in
their order; term and vote are on the disk (`Persist`) before a message with them is
sent.

    learner ──the leader's lines are here──► follower ──silence, and ──► candidate
       ▲                                        ▲  ▲    most would vote    │ most vote
    an empty folder                             │  └──a later term─────────┤
                                                └──most are silent──── leader

A voter whose folder is empty may have lost its vote: it is a learner, which does not
vote, until a leader has brought it up to date, or until all other voters report that
nothing was ever written. (Ongaro and Ousterhout, "In search of an understandable
consensus algorithm", 2014; the learner is "Consensus: bridging theory and practice",
2014, chapter 4, and the pre-vote its 9.6.)
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
    Vote,
    VoteRequest,
    VoterMessage,
)

BEAT = 0.15
"""Seconds between two messages of a leader."""
SILENCE = (0.8, 1.6)
"""Seconds of silence after which a voter stands for election, drawn anew each time."""
AT_ONCE = 256
"""The most lines of one message."""
LEARNER, FOLLOWER, CANDIDATE, LEADER = "learner", "follower", "candidate", "leader"


class LineLog(Protocol):
    """A copy of the ledger: lines, each with the hash of the one before."""

    @property
    def count(self) -> int:
        """How many lines there are."""
        ...

    def term(self, count: int) -> int:
        """The term of the last of the first `count` lines; 0 of none."""
        ...

    def hash(self, count: int) -> str:
        """The hash of the last of the first `count` lines."""
        ...

    def lines(self, start: int, most: int) -> Sequence[str]:
        """Lines from a number on."""
        ...

    def take(self, start: int, lines: Sequence[str]) -> None:
        """Write lines from `start` on to the disk, in place of others."""
        ...


@dataclass(frozen=True, slots=True)
class Persist:
    """Write term and vote to the disk before any later effect."""

    term: int
    voted_for: int | None


@dataclass(frozen=True, slots=True)
class SendTo:
    """Send a message to a voter; it may get lost."""

    to: int
    message: VoterMessage


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


Effect = Persist | SendTo | Lead | Deposed | Over


class Election:
    """One voter, number `me` of `voters`. Not thread-safe; never blocks.

    `persisted` is the term and the vote that were on the disk; None: none were.
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
        """The number of lines that count: most voters have them."""
        self._draw, self._heard = draw, now
        self._until = self._stands_at(now)
        self._beaten = now - BEAT
        self._votes: set[int] = set()
        self._would: set[int] | None = None
        """Voters that would vote for this one, during a pre-vote."""
        self._blank: dict[int, int] = {}
        """The terms of voters that report that nothing was ever written."""
        self._next: dict[int, int] = {}
        self._match: dict[int, int] = {}
        self._answered: dict[int, float] = {}
        self._effects: list[Effect] = []
        if not self.peers:
            self.role = FOLLOWER

    def holds(self, now: float) -> bool:
        """Whether this voter leads; most voters may be silent since a moment ago."""
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

    def heard(self, message: VoterMessage, now: float) -> list[Effect]:
        """A message of a voter came."""
        if message.sender not in self.peers:
            return []
        if isinstance(message, VoteRequest) and self._content(message, now):
            return []  # there is a leader: a voter that was cut off does not depose it
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
        """The leader ends the run: no voter takes it over."""
        if self.role == LEADER:
            self._tell_all(Farewell(sender=self.me, term=self.term, reason=reason))
        return self._taken()

    # Elections --------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        """Begin a pre-vote: would most voters vote for this one?

        No term or vote changes.
        """
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
        """Whether a leader was alive too lately to vote for another."""
        if self.role == LEADER:
            unseats = message.trial or message.term > self.term
            return unseats and self._reached(now) >= self.most
        return self.leader is not None and now - self._heard < SILENCE[0]

    def _on_request(self, message: VoteRequest, now: float) -> None:
        count = self.log.count
        behind = (message.last, message.count) < (self.log.term(count), count)
        able = self.role != LEARNER and not behind
        if message.trial:  # as this voter would vote in the next term
            granted = able and message.term >= self.term
            term = message.term if granted else self.term
            answer = Vote(sender=self.me, term=term, granted=granted, trial=True)
            self._say(message.sender, answer)
            return
        free = self.voted_for in (None, message.sender)
        granted = message.term == self.term and free and able
        if granted:
            self._vote(self.term, message.sender)
            self._until = self._stands_at(now)
        self._say(message.sender, Vote(sender=self.me, term=self.term, granted=granted))

    def _on_vote(self, message: Vote, now: float) -> None:
        if message.term != self.term or not message.granted:
            return
        if message.trial:
            if self._would is not None:
                self._would.add(message.sender)
                self._encouraged(now)
        elif self.role == CANDIDATE:
            self._votes.add(message.sender)
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
        """Enter a later term, as a follower: a lead, or a candidacy, is over."""
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
        """How many voters answered lately, the leader included."""
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

    def _on_lines(self, message: Lines, now: float) -> None:
        if message.term < self.term:
            self._answer(message, False, self.log.count)
            return
        if self.role == CANDIDATE:
            self.role = FOLLOWER
        self.leader, self._heard, self._would = message.sender, now, None
        self._until = self._stands_at(now)
        log = self.log
        if message.start > log.count or log.hash(message.start) != message.before:
            # A start at which both may agree: further back with every answer.
            back = max(0, min(log.count, message.start - max(1, message.start // 2)))
            self._answer(message, False, back)
            return
        log.take(message.start, message.lines)
        reached = message.start + len(message.lines)
        self.committed = max(self.committed, min(message.committed, reached))
        if self.role == LEARNER and reached >= message.end:
            self.role = FOLLOWER
            self._vote(self.term, message.sender)  # it may have lost its vote
        self._answer(message, True, reached)

    def _answer(self, message: Lines, taken: bool, count: int) -> None:
        answer = LinesTaken(sender=self.me, term=self.term, taken=taken, count=count)
        self._say(message.sender, answer)

    def _on_taken(self, message: LinesTaken, now: float) -> None:
        if self.role != LEADER or message.term != self.term:
            return
        peer = message.sender
        self._answered[peer] = now
        if not message.taken:
            self._next[peer] = min(message.count, self.log.count)
            self._send_to(peer)
            return
        self._match[peer] = max(self._match[peer], message.count)
        self._next[peer] = max(self._next[peer], self._match[peer])
        self._count()
        if message.count < self.log.count:
            self._next[peer] = message.count
            self._send_to(peer)

    def _count(self) -> None:
        """Lines that most voters have count, once one of this term is among them."""
        have = sorted([self.log.count, *self._match.values()], reverse=True)
        reached = have[self.most - 1]
        if reached > self.committed and self.log.term(reached) == self.term:
            self.committed = reached

    # Folders that are empty -------------------------------------------------------

    def _on_blank(self, message: Blank, now: float) -> None:
        nothing = not self.log.count
        if message.asks and nothing:
            self._say(message.sender, Blank(sender=self.me, term=self.term))
        elif not message.asks and self.role == LEARNER and nothing:
            self._blank[message.sender] = message.term
            if len(self._blank) == len(self.peers):
                self.role = FOLLOWER
                self._vote(max(self.term, *self._blank.values()) + 1, None)
                self._until = self._stands_at(now)

    # ----------------------------------------------------------------------------

    def _vote(self, term: int, voted_for: int | None) -> None:
        self.term, self.voted_for = term, voted_for
        if self.role != LEARNER:  # a learner may have lost a vote, and must stay one
            self._effects.append(Persist(term, voted_for))

    def _stands_at(self, now: float) -> float:
        return now + self._draw.uniform(*SILENCE)

    def _tell_all(self, message: VoterMessage) -> None:
        for peer in self.peers:
            self._say(peer, message)

    def _say(self, to: int, message: VoterMessage) -> None:
        self._effects.append(SendTo(to, message))

    def _taken(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
