"""The membership protocol against a small model of what it should say."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pcp.runtime.group.membership import Membership, Past, Phase, SendMessage

Said = set[tuple]
KEYS = [(0, 0), (0, 1), (7, 0)]


def said(sends: list[SendMessage]) -> Said:
    """Messages without their order and addresses."""
    forms = {
        "prepare": lambda f: (f["epoch"], tuple(f["names"])),
        "go": lambda f: (f["epoch"],),
        "dead": lambda f: (f["name"],),
        "query": lambda f: (tuple(f["key"]),),
        "decided": lambda f: (tuple(f["key"]), f["commit"]),
        "refused": lambda f: (),
        "unvoted": lambda f: (),
    }
    return {(s.to, s.what, *forms[s.what](s.facts)) for s in sends}


@dataclass
class Model:
    """Sets and lists: who lives, who is in the epoch, who asked for what."""

    first: int
    living: list[str] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)
    """Of the epoch; who has such a name now is a newcomer."""
    epoch: list[str] = field(default_factory=list)
    number: int = 0
    missing: set[str] | None = None
    """Who has not formed yet; None when the epoch stands."""
    votes: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    asked: dict[tuple, set[str]] = field(default_factory=dict)
    yes: dict[tuple, set[str]] = field(default_factory=dict)
    outcomes: dict[tuple, bool] = field(default_factory=dict)

    @property
    def left(self) -> list[str]:
        alive = set(self.living) - self.dead
        return [name for name in self.epoch if name in alive]

    def prepare(self) -> Said:
        """Survivors keep their order, newcomers follow in theirs."""
        left = self.left
        self.epoch = left + [n for n in self.living if n not in left]
        self.dead = set()
        self.asked, self.yes, self.outcomes = {}, {}, {}
        self.missing = set(self.epoch) if self.epoch else None
        if not self.epoch:
            return set()
        self.number += 1
        names = tuple(self.epoch)
        return {(name, "prepare", self.number, names) for name in names}

    def renew(self) -> Said:
        """What follows when something changed outside of forming."""
        if self.missing is not None:
            return set()
        if not self.left:
            enough = self.first if self.number == 0 else 1
            return self.prepare() if len(self.living) >= enough else set()
        if not self.votes >= set(self.left):
            return set()
        if self.left != self.living_in_order() or self.broken & set(self.left):
            return self.prepare()
        self.votes = set()
        return {(name, "go", self.number) for name in self.left}

    def living_in_order(self) -> list[str]:
        """All of the epoch, if it is whole and nobody waits; else something else."""
        whole = set(self.epoch) == set(self.living) and not self.dead
        return self.epoch if whole else []

    def settle(self, key: tuple) -> Said:
        """An operation happens if all who are left voted for it."""
        if key in self.outcomes or not self.yes[key] >= set(self.left):
            return set()
        self.outcomes[key] = True
        return {(n, "decided", key, True) for n in self.asked[key] & set(self.left)}


class Protocol(RuleBasedStateMachine):
    """Members join, vote, form, ask, answer and die in any order."""

    @initialize(first=st.integers(1, 3))
    def begin(self, first: int) -> None:
        self.state, self.model = Membership(first=first), Model(first)
        self.count = 0

    def compare(self, sends: list[SendMessage], expected: Said) -> None:
        assert said(sends) == expected

    @rule()
    def join(self) -> None:
        name = f"m{self.count}"
        self.count += 1
        self.model.living.append(name)
        self.compare(self.state.join(name, name), self.model.renew())

    @precondition(lambda self: self.model.left and self.model.missing is None)
    @rule(data=st.data(), broken=st.booleans())
    def vote(self, data: st.DataObject, broken: bool) -> None:
        name = data.draw(st.sampled_from(self.model.left))
        self.model.votes.add(name)
        self.model.broken |= {name} if broken else set()
        self.compare(self.state.vote(name, broken=broken), self.model.renew())

    @precondition(lambda self: self.model.left and self.model.missing is None)
    @rule(data=st.data())
    def unvote(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.model.left))
        self.model.votes.discard(name)
        expected = {(name, "unvoted")} | self.model.renew()
        self.compare(self.state.unvote(name), expected)

    @precondition(lambda self: self.model.missing)
    @rule(data=st.data(), late=st.booleans())
    def formed(self, data: st.DataObject, late: bool) -> None:
        model = self.model
        name = data.draw(st.sampled_from(sorted(model.missing or ())))
        if late:
            self.compare(self.state.formed(name, model.number - 1), set())
            return
        assert model.missing is not None
        model.missing.discard(name)
        expected: Said = set()
        if not model.missing:
            model.missing, model.votes, model.broken = None, set(), set()
            expected = {(n, "go", model.number) for n in model.epoch}
        self.compare(self.state.formed(name, model.number), expected)

    @precondition(lambda self: self.model.living)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        model = self.model
        name = data.draw(st.sampled_from(model.living))
        self.compare(self.state.died(name), self.loses(name))

    def loses(self, name: str) -> Said:
        """Somebody is gone."""
        model = self.model
        model.living.remove(name)
        if name not in model.epoch or name in model.dead:
            return set()
        if model.missing is not None:
            return model.prepare()
        model.dead.add(name)
        model.votes.discard(name)
        expected: Said = {(n, "dead", name) for n in model.left}
        for key in model.asked:
            expected |= model.settle(key)
        return expected | model.renew()

    @precondition(lambda self: self.model.epoch and self.model.missing is None)
    @rule(data=st.data())
    def come_again(self, data: st.DataObject) -> None:
        """A new process under a name of the epoch, its old one dead or not."""
        model = self.model
        name = data.draw(st.sampled_from(model.epoch))
        if name in model.dead and name in model.living:
            return
        expected = self.loses(name) if name in model.living else set()
        model.living.append(name)
        expected |= model.renew()
        self.compare(self.state.resume(name, name, Past()), expected)

    @precondition(lambda self: self.model.left and self.model.missing is None)
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def ask(self, data: st.DataObject, key: tuple) -> None:
        model = self.model
        name = data.draw(st.sampled_from(model.left))
        if key in model.outcomes:
            expected = {(name, "decided", key, model.outcomes[key])}
        else:
            model.asked.setdefault(key, set()).add(name)
            model.yes.setdefault(key, set()).add(name)
            unheard = set(model.left) - model.yes[key]
            expected = {(n, "query", key) for n in unheard} | model.settle(key)
        self.compare(self.state.ask(name, model.number, key), expected)

    @precondition(lambda self: self.model.asked and self.model.missing is None)
    @rule(data=st.data(), done=st.booleans())
    def answer(self, data: st.DataObject, done: bool) -> None:
        model = self.model
        key = data.draw(st.sampled_from(sorted(model.asked)))
        unheard = sorted(set(model.left) - model.yes[key])
        if not unheard or key in model.outcomes:
            return
        name = data.draw(st.sampled_from(unheard))
        if done:
            model.yes[key].add(name)
            expected = model.settle(key)
        else:
            model.outcomes[key] = False
            asked = model.asked[key] & set(model.left)
            expected = {(n, "decided", key, False) for n in asked}
        self.compare(self.state.answer(name, model.number, key, done), expected)

    @invariant()
    def they_agree(self) -> None:
        model, state = self.model, self.state
        assert state.survivors == model.left
        assert state.epoch == model.number
        assert list(state.members) == model.living
        assert (state.phase is Phase.FORMING) == (model.missing is not None)


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(
    max_examples=150, stateful_step_count=40, derandomize=True
)
