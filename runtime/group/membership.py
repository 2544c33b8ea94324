"""Who is in the group: the coordinator's state machine, without any sockets.

Members join, vote to renew the group, report, answer, leave and die; each of
these is a method, and each returns the messages to send. Epochs only grow, and
an epoch has one list of members for ever.

                    join                    all live members voted, and somebody
      ┌──────┐  (enough wait)  ┌─────────┐  waits, died, or found it broken
      │ IDLE │────────────────►│ FORMING │◄─────────────────────────┐
      └──────┘                 │  epoch  │   a candidate died or    │
         ▲                     └────┬────┘   could not form it:     │
         │ nobody is left           │ all    FORMING, next epoch    │
         │                          ▼ formed                        │
         │                     ┌─────────┐  a vote   ┌────────┐     │
         └─────────────────────┤ STABLE  ├──────────►│ VOTING ├─────┘
                               │  epoch  │◄──────────┤        │
                               └─────────┘ all voted,└────────┘
                                           nothing changed: same epoch

Renewing blocks until every live member asks for it: it happens between two
steps of a program, never inside an operation.

The outcome of an operation is the members' own affair as long as nobody is
lost: it happens when all voted for it. When one is lost, a member that had
voted asks here. All survivors are queried; the operation happens if every one
of them had voted (or committed already), and on no member otherwise. A member
that answers "not done" never votes for that operation again; one that answers
"done" no longer gives it up because another did. So an operation
that one survivor committed, all survivors voted for: the decision can only be
to commit it, also when a restarted coordinator decides it anew.
"""

from enum import Enum

from pcp.runtime.group.membership_messages import (
    Decision,
    GroupMember,
    Key,
    Past,
    SendMessage,
)

EPOCHS_PER_INCARNATION = 1000
"""A coordinator's first epoch is the next after a multiple of this."""
BLAMES = 2
"""A candidate that others fail to reach in so many formations running is refused."""


class Phase(Enum):
    """Where the group stands."""

    IDLE = "idle"
    FORMING = "forming"
    STABLE = "stable"
    VOTING = "voting"


class Membership:
    """The state of one elastic group. Not thread-safe; never blocks."""

    def __init__(
        self, *, first: int = 1, incarnation: int = 0, settled: bool = True
    ) -> None:
        """`generation` is larger for every coordinator the group ever had.

        Before it is `settled` there may be a group of an earlier coordinator's,
        and newcomers wait for it.
        """
        self.first = first
        """How many must wait before the first group is formed."""
        self.epoch = 0
        """The epoch of `group`."""
        self.newest = incarnation * EPOCHS_PER_INCARNATION
        """The newest epoch that was ever prepared."""
        self.phase = Phase.IDLE
        self.members: dict[str, GroupMember] = {}
        """All who live, by name, in order of arrival."""
        self.group: list[str] = []
        """The epoch's members, dead ones included, by rank."""
        self._settled = settled
        self._dead: set[str] = set()
        """Those of them that died: whoever has such a name now is somebody else."""
        self._missing: set[str] = set()
        self._decisions: dict[Key, Decision] = {}

    # What is asked about it.

    @property
    def survivors(self) -> list[str]:
        """Live members of the epoch, by rank."""
        return [name for name in self.group if self._survived(name)]

    @property
    def waiting(self) -> list[str]:
        """Those who live and are in no epoch yet."""
        return [name for name in self.members if not self._survived(name)]

    # What happens.

    def join(self, name: str, address: str) -> list[SendMessage]:
        """Somebody new. It is in the group after the next renewal."""
        if name in self.members:
            why = f"a member named {name} is here already; choose another name"
            return [SendMessage(name, "refused", {"reason": why})]
        self.members[name] = GroupMember(name, address)
        return self._advance()

    def resume(self, name: str, address: str, past: Past) -> list[SendMessage]:
        """A member comes back, to this coordinator or to one that starts anew.

        One that starts anew learns from the first of them which group there is;
        the others of that group count as alive until `died` says otherwise.
        """
        known = max(past.epoch, past.formed, past.prepared)
        if known > self.newest:
            # A later coordinator's: it may have prepared more than we hear of here.
            self.newest = (known // EPOCHS_PER_INCARNATION + 1) * EPOCHS_PER_INCARNATION
        sends: list[SendMessage] = []
        if max(past.epoch, past.formed) > self.epoch:
            sends = self._adopt(past)
        if max(past.epoch, past.formed) == self.epoch:
            sends += self._bury(past.gone)
        if not known and self.phase is not Phase.FORMING and self._survived(name):
            # It remembers nothing: the one that voted under this name has died.
            sends += self.died(name)
        if name not in self.members:
            if known == past.prepared and not past.epoch and not past.formed:
                return sends + self.join(name, address)
            why = f"{name} was taken for dead in epoch {self.epoch}: join anew"
            return [*sends, SendMessage(name, "refused", {"reason": why})]
        member = self.members[name]
        member.address, member.at, member.formed = address, past.epoch, past.formed
        if self.phase is Phase.FORMING:
            return sends + (self._form() if self._survived(name) else [])
        sends += [
            self._query(name, key)
            for key, decision in self._decisions.items()
            if decision.outcome is None and name not in decision.answers
        ]
        if past.epoch == self.epoch:
            member.voted, member.broken = past.voting, past.broken
            member.turn = past.turn
        else:
            member.voted = member.broken = True
        return sends + self._catch_up() + self._advance()

    def _adopt(self, past: Past) -> list[SendMessage]:
        """Take over a newer group than this coordinator knows.

        Who came back from an older one and is not in it was taken for dead there.
        """
        gone = [
            member
            for member in self.members.values()
            if member.at and member.name not in past.group
        ]
        for member in gone:
            del self.members[member.name]
        self.epoch, self.phase = max(past.epoch, past.formed), Phase.STABLE
        self.group = list(past.group)
        self._decisions.clear()
        newcomers = (m.name for m in self.members.values() if not m.at | m.formed)
        self._dead = set(newcomers).intersection(self.group)
        for name, address in past.group.items():
            member = self.members.setdefault(name, GroupMember(name, address, at=-1))
            if member.at not in (-1, self.epoch):
                member.voted = member.broken = True
        why = f"taken for dead before epoch {self.epoch}: join anew"
        return [
            SendMessage(member.name, "refused", {"reason": f"{member.name} was {why}"})
            for member in gone
            if member.at > 0
        ]

    def _bury(self, names: list[str]) -> list[SendMessage]:
        """Members that an earlier coordinator called dead stay dead for this one.

        It may have decided without them what others have carried out since.
        """
        sends: list[SendMessage] = []
        for name in names if self.phase is not Phase.FORMING else ():
            member = self.members.get(name)
            if member and self._survived(name) and member.at in (-1, self.epoch):
                sends += self.died(name)
                why = f"{name} was taken for dead in epoch {self.epoch}: join anew"
                sends += [SendMessage(name, "refused", {"reason": why})] * (
                    member.at > 0
                )
        return sends

    def _catch_up(self) -> list[SendMessage]:
        """Say go again to those who missed it when the coordinator went.

        Somebody who goes on in the epoch proves that all were told to; so does
        somebody whose vote was answered, for everybody's vote of that turn.
        """
        live = self._live()
        there = [member for member in live if member.at == self.epoch]
        if not there:
            return []
        newest = max(member.turn for member in there)
        sends = []
        for member in live:
            missed = member.at != self.epoch and member.formed == self.epoch
            if missed or (member in there and member.voted and member.turn < newest):
                member.at, member.turn = self.epoch, newest if not missed else 0
                member.voted = member.broken = False
                sends.append(self._go(member.name))
        return sends

    def settle(self) -> list[SendMessage]:
        """Whatever group there was has had the time to come back."""
        self._settled = True
        return self._advance()

    def vote(self, name: str, *, broken: bool = False) -> list[SendMessage]:
        """A member stands between two steps and asks to renew the group."""
        member = self.members[name]
        member.voted, member.broken = True, member.broken or broken
        return self._advance()

    def unvote(self, name: str) -> list[SendMessage]:
        """A member gave up waiting for the others, unless it was told before."""
        if self.phase is not Phase.FORMING:
            self.members[name].voted = False
        return [SendMessage(name, "unvoted"), *self._advance()]

    def formed(self, name: str, epoch: int) -> list[SendMessage]:
        """A candidate has its connections to all others."""
        if self.phase is not Phase.FORMING or epoch != self.epoch:
            return []
        self._missing.discard(name)
        if self._missing:
            return []
        self.phase = Phase.STABLE
        self._decisions.clear()
        for member in self._live():
            member.voted = member.broken = False
            member.blamed = member.turn = 0
            member.at = epoch
        return [self._go(name) for name in self.group] + self._advance()

    def failed(self, name: str, epoch: int, lost: list[str]) -> list[SendMessage]:
        """A candidate could not form the epoch; `lost` did not answer it."""
        if self.phase is not Phase.FORMING or epoch != self.epoch:
            return []
        sends: list[SendMessage] = []
        for other in lost:
            blamed = self.members.get(other)
            if blamed is None:
                continue
            blamed.blamed += 1
            if blamed.blamed >= BLAMES:
                why = f"{name} and others cannot reach {other} at {blamed.address}"
                sends.append(SendMessage(other, "refused", {"reason": why}))
                del self.members[other]
        return sends + self._form()

    def died(self, name: str) -> list[SendMessage]:
        """A member left, its connection broke, or it was silent for too long."""
        survived = self._survived(name)
        self.members.pop(name, None)
        if not survived:
            return []
        self._dead.add(name)
        if self.phase is Phase.FORMING:
            return self._form()
        sends = [
            SendMessage(n, "dead", {"epoch": self.epoch, "name": name})
            for n in self.survivors
        ]
        for key in list(self._decisions):
            sends += self._decide(key)
        return sends + self._advance()

    def ask(self, name: str, epoch: int, key: Key) -> list[SendMessage]:
        """A member that voted for an operation lost somebody: did it happen?"""
        if epoch != self.epoch or not self._survived(name):
            return [_decided(name, epoch, key, False)]
        decision = self._decisions.setdefault(key, Decision())
        if decision.outcome is not None:
            return [_decided(name, epoch, key, decision.outcome)]
        decision.askers.add(name)
        decision.answers[name] = True
        queries = [
            self._query(other, key)
            for other in self.survivors
            if other not in decision.answers
        ]
        return queries + self._decide(key)

    def answer(self, name: str, epoch: int, key: Key, done: bool) -> list[SendMessage]:
        """A survivor says whether it voted for the operation."""
        decision = self._decisions.get(key)
        if epoch != self.epoch or decision is None:
            return []
        decision.answers[name] = done
        return self._decide(key)

    # Inside.

    def _survived(self, name: str) -> bool:
        return name in self.members and name in self.group and name not in self._dead

    def _live(self) -> list[GroupMember]:
        return [self.members[name] for name in self.survivors]

    def _advance(self) -> list[SendMessage]:
        """What follows from the votes there are."""
        if self.phase is Phase.FORMING:
            return []
        live = self._live()
        if not live:
            self.phase = Phase.IDLE
            enough = self.first if self.epoch == 0 else 1
            ready = self._settled and len(self.members) >= enough
            return self._form() if ready else []
        voted = [member for member in live if member.voted]
        self.phase = Phase.VOTING if voted else Phase.STABLE
        if len(voted) < len(live):
            return []
        lost_one = len(live) < len(self.group)
        if lost_one or self.waiting or any(member.broken for member in live):
            return self._form()
        self.phase = Phase.STABLE
        for member in live:
            member.voted = False
            member.turn += 1
        return [self._go(name) for name in self.group]

    def _form(self) -> list[SendMessage]:
        """Prepare the next epoch: who survived, in order, then who waits."""
        self.group = [*self.survivors, *self.waiting]
        self._dead.clear()
        self._decisions.clear()
        if not self.group:
            self.phase = Phase.IDLE
            return []
        self.epoch = self.newest = self.newest + 1
        self.phase = Phase.FORMING
        self._missing = set(self.group)
        addresses = [self.members[name].address for name in self.group]
        facts = {"epoch": self.epoch, "names": self.group, "addresses": addresses}
        return [SendMessage(name, "prepare", facts) for name in self.group]

    def _go(self, name: str) -> SendMessage:
        return SendMessage(name, "go", {"epoch": self.epoch})

    def _query(self, name: str, key: Key) -> SendMessage:
        return SendMessage(name, "query", {"epoch": self.epoch, "key": list(key)})

    def _decide(self, key: Key) -> list[SendMessage]:
        decision = self._decisions[key]
        if decision.outcome is not None:
            return []
        answers = [decision.answers.get(name) for name in self.survivors]
        if False in answers:
            decision.outcome = False
        elif None not in answers:
            decision.outcome = True
        else:
            return []
        return [
            _decided(name, self.epoch, key, decision.outcome)
            for name in self.survivors
            if name in decision.askers
        ]


def _decided(name: str, epoch: int, key: Key, outcome: bool) -> SendMessage:
    facts = {"epoch": epoch, "key": list(key), "commit": outcome}
    return SendMessage(name, "decided", facts)
