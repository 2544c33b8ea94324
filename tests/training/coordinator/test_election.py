"""Standby shepherds under drawn schedules: one leader a term, and no line is lost."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from helpers.simulation.ledger_in_memory import LedgerInMemory

from pcp.training.coordinator.standby import election
from pcp.training.coordinator.standby.election import (
    LEADER,
    Deposed,
    Election,
    Lead,
    Persist,
    SendTo,
)
from pcp.training.wire.shepherd_messages import Lines, VoteRequest, VoterMessage


class Voter:
    """A process: its disk, and the machine while it lives."""

    def __init__(self) -> None:
        self.log = LedgerInMemory()
        self.disk: tuple[int, int | None] | None = None
        self.machine: Election | None = None


class World:
    """Voters, a network that drops, delays and cuts, kills, and lost folders."""

    def __init__(self, seed: int, voters: int = 3) -> None:
        self.draw = random.Random(seed)
        self.voters = [Voter() for _ in range(voters)]
        self.now = 0.0
        self.mail: list[tuple[float, int, int, VoterMessage]] = []
        self.cut: set[int] = set()
        self.leaders: dict[int, int] = {}
        """Who led, by term."""
        self.counted: list[str] = []
        """The lines that count, as whoever led said so."""
        self.words = 0
        for number in range(voters):
            self.start(number)

    def start(self, number: int) -> None:
        voter = self.voters[number]
        draw = random.Random(self.draw.random())
        voter.machine = Election(
            number, len(self.voters), voter.log, voter.disk, self.now, draw
        )

    def kill(self, number: int, *, folder: bool) -> None:
        self.voters[number].machine = None
        if folder:
            self.voters[number].log, self.voters[number].disk = LedgerInMemory(), None

    def perform(self, number: int, effects) -> None:
        voter = self.voters[number]
        for effect in effects:
            match effect:
                case Persist(term=term, voted_for=vote):
                    voter.disk = (term, vote)
                case SendTo(to=to, message=message):
                    if self.draw.random() < 0.95:
                        at = self.now + self.draw.uniform(0.001, 0.05)
                        self.mail.append((at, number, to, message))
                case Lead(term=term):
                    assert self.leaders.setdefault(term, number) == number, (
                        f"two leaders of term {term}"
                    )
                    self.write(number)  # a leader begins with a line
                case Deposed():
                    pass

    def write(self, number: int) -> None:
        machine = self.voters[number].machine
        if machine is None or machine.role != LEADER:
            return
        self.words += 1
        machine.log.take(machine.log.count, [f"{machine.term} {self.words}"])
        self.perform(number, machine.grew(self.now))

    def step(self) -> None:
        self.now += 0.02
        due = sorted((m for m in self.mail if m[0] <= self.now), key=lambda m: m[0])
        self.mail = [m for m in self.mail if m[0] > self.now]
        for _, sender, to, message in due:
            machine = self.voters[to].machine
            if machine is not None and not self.cut & {sender, to}:
                self.perform(to, machine.heard(message, self.now))
        for number, voter in enumerate(self.voters):
            if voter.machine is not None:
                self.perform(number, voter.machine.tick(self.now))
        self.check()

    def check(self) -> None:
        """What counts, counts for ever: every leader's count begins with it."""
        for voter in self.voters:
            machine = voter.machine
            if machine is None or machine.role != LEADER:
                continue
            said = machine.log.lines(0, machine.committed)
            known = min(len(said), len(self.counted))
            assert said[:known] == self.counted[:known], "a line that counted is lost"
            if len(said) > len(self.counted):
                self.counted = list(said)

    def run(self, seconds: float, writing: bool = True) -> None:
        until = self.now + seconds
        while self.now < until:
            self.step()
            if writing and self.draw.random() < 0.3:
                self.write(self.draw.randrange(len(self.voters)))

    @property
    def leader(self) -> int | None:
        """Who leads, and is heard by most."""
        found = [
            (v.machine.term, n)
            for n, v in enumerate(self.voters)
            if v.machine is not None and v.machine.role == LEADER and n not in self.cut
        ]
        return max(found)[1] if found else None

    def whole(self) -> bool:
        """Whether all live, vote, and have what counts."""
        return all(
            v.machine is not None
            and v.machine.role != election.LEARNER
            and v.log.held[: len(self.counted)] == self.counted
            for v in self.voters
        )

    def settle(self) -> None:
        """Nothing more happens to anybody: soon one leads, and all have its lines."""
        self.cut.clear()
        for _ in range(40):
            self.run(1.0)
            if self.leader is not None and self.whole():
                return
        raise AssertionError("no leader, or copies that lack lines, after 40 seconds")


def schedule(seed: int, voters: int = 3) -> None:
    """One after the other fails, whoever it is, with its folder or without."""
    world = World(seed, voters)
    world.settle()
    draw = world.draw
    for _ in range(6):
        leader = world.leader
        victim = draw.randrange(voters)
        if leader is not None and draw.random() < 0.5:
            victim = leader
        what = draw.choice(["kill", "folder", "cut", "again"])
        if what == "cut":
            world.cut.add(victim)
        else:
            world.kill(victim, folder=what == "folder")
        world.run(0.0 if what == "again" else draw.uniform(0.1, 6.0))
        if world.voters[victim].machine is None:
            world.start(victim)
        world.settle()
    assert world.counted, "nothing was ever counted"


def forgotten(seed: int) -> None:
    """Who has the newest lines loses its folder, while another has yet to get them."""
    world = World(seed)
    world.settle()
    leader = world.leader
    assert leader is not None
    world.cut.add((leader + 1) % 3)
    world.run(0.6)
    world.cut.clear()
    world.kill(leader, folder=True)
    world.start(leader)
    world.settle()


def first_violation(seeds: range, voters: int = 3) -> str:
    for seed in seeds:
        try:
            forgotten(seed)
            schedule(seed, voters)
        except AssertionError as error:
            return f"seed {seed}: {error}"
    return ""


def test_one_leads_and_no_line_that_counts_is_lost() -> None:
    assert first_violation(range(30)) == ""
    assert first_violation(range(5), 5) == ""


@pytest.mark.slow
def test_the_same_in_many_schedules() -> None:
    """About 0.05 s each, half an hour in all."""
    assert first_violation(range(1000, 21_000)) == ""
    assert first_violation(range(2_000), 5) == ""


def votes_twice(self: Election, said: VoteRequest, now: float) -> None:
    self.voted_for = None
    ORIGINAL["_on_request"](self, said, now)


def votes_for_who_lacks_lines(self: Election, said: VoteRequest, now: float) -> None:
    ahead = said.model_copy(update={"last": 1 << 60})
    ORIGINAL["_on_request"](self, ahead, now)


def counts_lines_of_older_terms(self: Election) -> None:
    have = sorted([self.log.count, *self._match.values()], reverse=True)
    self.committed = max(self.committed, have[self.most - 1])


def counts_what_it_alone_has(self: Election) -> None:
    self.committed = self.log.count


def takes_lines_that_do_not_follow(self: Election, said: Lines, now: float) -> None:
    start = min(said.start, self.log.count)
    before = self.log.hash(start)
    there = said.model_copy(update={"start": start, "before": before})
    ORIGINAL["_on_lines"](self, there, now)


def votes_with_an_empty_folder(self: Election, said: VoteRequest, now: float) -> None:
    if self.role == election.LEARNER:
        self.role = election.FOLLOWER
    ORIGINAL["_on_request"](self, said, now)


ORIGINAL = {name: getattr(Election, name) for name in ("_on_request", "_on_lines")}


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("_on_request", votes_twice),
        ("_on_request", votes_for_who_lacks_lines),
        ("_count", counts_what_it_alone_has),
        ("_on_lines", takes_lines_that_do_not_follow),
        ("_on_request", votes_with_an_empty_folder),
    ],
)
def test_a_mutant_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, mutant: Callable[..., Any]
) -> None:
    monkeypatch.setattr(Election, name, mutant)
    assert first_violation(range(40))


def unseated(seed: int) -> bool:
    """Whether a voter that was cut off, and comes back, ends the leader's term."""
    world = World(seed)
    world.settle()
    leader = world.leader
    assert leader is not None
    led = world.voters[leader].machine
    assert led is not None
    term, other = led.term, (leader + 1) % 3
    world.cut.add(other)
    world.run(10.0)  # it would have stood again and again
    assert led.term == term, "the others were not disturbed"
    world.cut.clear()
    world.run(5.0)
    world.run(1.0, writing=False)
    machine = world.voters[other].machine
    assert machine is not None
    assert world.whole()
    return (machine.term, led.term, led.role) != (term, term, LEADER)


def test_who_was_cut_off_and_comes_back_unseats_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not any(unseated(seed) for seed in range(5))
    monkeypatch.setattr(Election, "_ask", Election._stand)
    assert all(unseated(seed) for seed in range(5)), "so it was without the question"


def test_less_than_half_never_lead() -> None:
    world = World(7)
    world.settle()
    leader = world.leader
    assert leader is not None
    for number in {0, 1, 2} - {leader}:
        world.kill(number, folder=False)
    before = len(world.counted)
    world.run(10.0)
    assert world.leader is None
    assert len(world.counted) == before, "what one voter has alone counts for nothing"


def test_a_run_that_its_leader_ends_is_taken_over_by_nobody() -> None:
    world = World(3)
    world.settle()
    leader = world.leader
    assert leader is not None
    machine = world.voters[leader].machine
    assert machine is not None
    said = machine.ended("cancelled")
    heard = [e.message for e in said if isinstance(e, SendTo)]
    assert len(heard) == 2
    other = world.voters[(leader + 1) % 3].machine
    assert other is not None
    assert [type(e).__name__ for e in other.heard(heard[0], world.now)] == ["Over"]
