"""Membership of an elastic group: the coordinator's state machine, without sockets.

Members join, vote to renew the group, report, answer, leave and die; each of
these is a method, and each returns the messages to send. Epochs only grow, and
an epoch has one list of members for ever.

                    join                    all live members voted, and one waits,
      ┌──────┐  (enough wait)  ┌─────────┐  died, or reported the epoch broken
      │ IDLE │────────────────►│ FORMING │◄─────────────────────────┐
      └──────┘                 │  epoch  │   a candidate died or    │
         ▲                     └────┬────┘   could not form it:     │
         │ no member left           │ all    FORMING, next epoch    │
         │                          ▼ formed                        │
         │                     ┌─────────┐  a vote   ┌────────┐     │
         └─────────────────────┤ STABLE  ├──────────►│ VOTING ├─────┘
                               │  epoch  │◄──────────┤        │
                               └─────────┘ all voted,└────────┘
                                           nothing changed: same epoch

A renewal blocks until every live member votes for it: it happens between two
steps of a program, never inside an operation.

The members settle the outcome of an operation themselves as long as none is lost: it
happens when all voted for it. When one is lost, a member that had voted asks the
coordinator. All survivors are queried; the operation happens if every one of them had
voted (or committed already), and on no member otherwise. A member that answers "not
done" never votes for that operation again; one that answers "done" no longer gives it
up because another did. So all survivors voted for an operation that one survivor
committed: the decision can only be to commit it, also when a restarted coordinator
decides it anew.
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
"""A candidate that was not reached in so many formations in a row is refused."""


class Phase(Enum):
    """The states of a group."""

    IDLE = "idle"
    FORMING = "forming"
    STABLE = "stable"
    VOTING = "voting"


class Membership:
    """The state of one elastic group. Not thread-safe; never blocks."""

    def __init__(
        self, *, first: int = 1, incarnation: int = 0, settled: bool = True
    ) -> None:
        """`incarnation` is larger for every coordinator the group ever had.

        Before it is `settled` a group of an earlier coordinator may come back, and
        newcomers wait for its members.
        """
        self.first = first
        """How many members must wait before the first group is formed."""
        self.epoch = 0
        """The epoch of `group`."""
        self.newest = incarnation * EPOCHS_PER_INCARNATION
        """The newest epoch that was ever prepared."""
        self.phase = Phase.IDLE
        self.members: dict[str, GroupMember] = {}
        """The live members, by name, in order of arrival."""
        self.group: list[str] = []
        """The epoch's members, dead ones included, by rank."""
        self._settled = settled
        self._dead: set[str] = set()
        """Dead members of the epoch: a live one of such a name is a newcomer."""
        self._missing: set[str] = set()
        self._decisions: dict[Key, Decision] = {}

    # Questions.

    @property
    def survivors(self) -> list[str]:
        """Live members of the epoch, by rank."""
        return [name for name in self.group if self._survived(name)]

    @property
    def waiting(self) -> list[str]:
        """Live members that are in no epoch yet."""
        return [name for name in self.members if not self._survived(name)]

    def who(self, name: str) -> SendMessage:
        """The answer to a member that asks who is here."""
        wanted = self.first if self.epoch == 0 else 0
        facts = {"group": self.survivors, "waiting": self.waiting, "wanted": wanted}
        return SendMessage(name, "present", facts)

    # Events.

    def join(self, name: str, address: str) -> list[SendMessage]:
        """Admit a newcomer; it is in the group after the next renewal."""
        if name in self.members:
            why = f"a member named {name} is here already; choose another name"
            return [SendMessage(name, "refused", {"reason": why})]
        self.members[name] = GroupMember(name, address)
        return self._advance()

    def resume(self, name: str, address: str, past: Past) -> list[SendMessage]:
        """Take a member back that lost its connection, or its coordinator.

        A new coordinator learns the present group from the first such member; the
        other members of that group count as alive until `died`.
        """
        known = max(past.epoch, past.formed, past.prepared)
        if known > self.newest:
            # A later coordinator's: it may have prepared epochs that no member reports.
            self.newest = (known // EPOCHS_PER_INCARNATION + 1) * EPOCHS_PER_INCARNATION
        sends: list[SendMessage] = []
        if max(past.epoch, past.formed) > self.epoch:
            sends = self._adopt(past)
        if max(past.epoch, past.formed) == self.epoch:
            sends += self._bury(past.gone)
        if not known and self.phase is not Phase.FORMING and self._survived(name):
            # Without a past: the process that voted under this name has died.
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

        A member of an older group that is not in it was taken for dead there.
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
        """Keep members dead that an earlier coordinator declared dead.

        It may have decided operations without them, which others have carried out.
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
        """Send go again to the members that missed it when a coordinator died.

        A member in the epoch proves that all were to get a go; so does a member
        whose vote was answered, for the votes of all members in that turn.
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
        """End the grace in which an earlier group comes back."""
        self._settled = True
        return self._advance()

    def vote(self, name: str, *, broken: bool = False) -> list[SendMessage]:
        """Count the vote of a member, between two steps, to renew the group."""
        member = self.members[name]
        member.voted, member.broken = True, member.broken or broken
        return self._advance()

    def unvote(self, name: str) -> list[SendMessage]:
        """Take a member's vote back, unless it was answered before."""
        if self.phase is not Phase.FORMING:
            self.members[name].voted = False
        return [SendMessage(name, "unvoted"), *self._advance()]

    def formed(self, name: str, epoch: int) -> list[SendMessage]:
        """Note that a candidate has connections to all others."""
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
        """Prepare a new epoch: a candidate could not reach the candidates `lost`."""
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
        """Remove a member that left, lost its connection, or was silent too long."""
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
        """Query all survivors about an operation with a vote and a lost member."""
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
        """Count a survivor's answer: whether it voted for the operation."""
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
        """The messages that follow from the present votes."""
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
        """Prepare the next epoch: survivors in order, then waiting members."""
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
