"""Shepherds that share etcd, under drawn schedules: one leads, and no line is lost."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from helpers.servers.etcd_store import InMemory, Store
from helpers.simulation.ledger_in_memory import LedgerInMemory

from pcp.errors import StateMismatch
from pcp.training.coordinator.standby import leader_lease
from pcp.training.coordinator.standby.election import Deposed, Lead, Over
from pcp.training.coordinator.standby.leader_lease import (
    SECONDS,
    AppendLines,
    Campaign,
    Finish,
    LeaderLease,
    Look,
    Renew,
    Request,
)
from pcp.training.shepherd import etcd_elector
from pcp.training.shepherd.etcd import Unavailable


class Process:
    """A shepherd: its disk, its clock, and the machine while it lives."""

    def __init__(self, draw: random.Random) -> None:
        self.log = LedgerInMemory()
        self.rate, self.ahead = draw.uniform(0.93, 1.07), draw.uniform(0, 1e6)
        self.machine: LeaderLease | None = None
        self.lease = ""
        self.sleeps = 0.0
        """Until when it is stopped: nothing it does happens."""
        self.over: str | None = None


class World:
    """Shepherds, an etcd, and a network that delays and loses either way."""

    def __init__(self, seed: int, shepherds: int = 3) -> None:
        self.draw, self.now = random.Random(seed), 0.0
        self.store = Store(lambda: self.now)
        self.loss, self.cut = 0.03, set[int]()
        self.processes = [Process(self.draw) for _ in range(shepherds)]
        self.mail: list[tuple[float, int, LeaderLease, Callable[[], Any]]] = []
        self.words = 0
        self.counted: list[str] = []
        """Lines that a leader was told count."""
        for number in range(shepherds):
            self.start(number)

    def clock(self, number: int) -> float:
        process = self.processes[number]
        return process.ahead + self.now * process.rate

    def start(self, number: int) -> None:
        process = self.processes[number]
        process.machine = LeaderLease(process.log, self.clock(number))

    def kill(self, number: int, *, folder: bool) -> None:
        self.processes[number].machine = None
        if folder:
            self.processes[number].log = LedgerInMemory()

    def lost(self, number: int) -> str:
        if number in self.cut:
            return "request"
        luck = self.draw.random()
        return (
            "request" if luck < self.loss else "answer" if luck < 2 * self.loss else ""
        )

    def perform(self, number: int, effects) -> None:
        process = self.processes[number]
        machine = process.machine
        assert machine is not None
        for effect in effects:
            match effect:
                case Lead():
                    self.write(number)  # a leader begins with a line
                case Deposed():
                    pass
                case Over(reason=reason):
                    process.over = reason
                case _:
                    asked_at = self.clock(number)
                    at = self.now + self.delay()
                    ask = self.asking(number, machine, effect, asked_at)
                    self.mail.append((at, number, machine, ask))

    def delay(self) -> float:
        draw = self.draw
        return draw.uniform(0.3, 1.0) if draw.random() < 0.05 else draw.uniform(0, 0.05)

    def asking(
        self, number: int, machine: LeaderLease, request: Request, asked_at: float
    ) -> Callable[[], Any]:
        """The request reaches etcd; its answer comes later still."""

        def asked() -> None:
            etcd = InMemory(self.store, lambda: self.lost(number))
            try:
                answer = self.answer(number, machine, request, etcd, asked_at)
            except Unavailable:
                answer = lambda: machine.lost(request) or []  # noqa: E731
            self.mail.append((self.now + self.delay(), number, machine, answer))

        return asked

    def answer(self, number, machine, request, etcd, asked_at) -> Callable[[], Any]:
        process = self.processes[number]
        match request:
            case Look():
                seen = etcd_elector._looked(etcd, request)
                return lambda: machine.seen(seen)
            case Campaign():
                granted, seconds = etcd.grant(SECONDS)
                term = etcd_elector._campaigned(etcd, request, granted, str(number))

                def led() -> Any:
                    process.lease = granted
                    now = self.clock(number)
                    return machine.campaigned(term, asked_at, seconds, now)

                return led
            case Renew():
                left = etcd.keep_alive(process.lease)
                return lambda: machine.renewed(left, asked_at, self.clock(number))
            case AppendLines():
                taken = etcd_elector._appended(etcd, request)
                return lambda: machine.appended(request, taken)
            case Finish():
                etcd_elector._finished(etcd, request, process.lease)
                return lambda: []
        raise AssertionError(request)

    def write(self, number: int) -> None:
        machine = self.processes[number].machine
        if machine is None or not machine.holds(self.clock(number)):
            return
        self.words += 1
        machine.log.take(machine.log.count, [f"{machine.term} {self.words}"])
        self.perform(number, machine.grew(self.clock(number)))

    def step(self) -> None:
        self.now += 0.02
        due = sorted((m for m in self.mail if m[0] <= self.now), key=lambda m: m[0])
        self.mail = [m for m in self.mail if m[0] > self.now]
        for at, number, machine, act in due:
            process = self.processes[number]
            if process.machine is not machine:
                continue  # the process that asked is dead
            if process.sleeps > self.now:
                self.mail.append((process.sleeps, number, machine, act))
                continue
            del at
            self.perform(number, act() or [])
        for number, process in enumerate(self.processes):
            if process.machine is not None and process.sleeps <= self.now:
                now = self.clock(number)
                self.perform(number, process.machine.tick(now))
        self.check()

    def check(self) -> None:
        """One holds the lead, by its own clock; what counts is what etcd has."""
        holds = [
            number
            for number, process in enumerate(self.processes)
            if process.machine is not None and process.machine.holds(self.clock(number))
        ]
        assert len(holds) <= 1, f"two shepherds lead at once: {holds}"
        there = self.lines()
        assert there[: len(self.counted)] == self.counted, "a line that counted is lost"
        for number in holds:
            machine = self.processes[number].machine
            assert machine is not None
            said = machine.log.lines(0, machine.committed)
            assert said == there[: len(said)], "what counts is not what etcd has"
            if len(said) > len(self.counted):
                self.counted = list(said)

    def lines(self) -> list[str]:
        found = sorted(key for key in self.store.keys if b"/line/" in key)
        return [self.store.keys[key]["value"].decode() for key in found]

    def run(self, seconds: float, writing: bool = True) -> None:
        until = self.now + seconds
        while self.now < until:
            self.step()
            if writing and self.draw.random() < 0.3:
                self.write(self.draw.randrange(len(self.processes)))

    @property
    def leader(self) -> int | None:
        for number, process in enumerate(self.processes):
            machine = process.machine
            if machine is not None and machine.holds(self.clock(number)):
                return number
        return None

    def settle(self) -> None:
        """Nothing more happens to anybody: soon one leads, and all have its lines."""
        self.cut.clear()
        self.loss = 0.03
        for _ in range(30):
            self.run(1.0)
            self.run(1.0, writing=False)
            copies = [process.log.held for process in self.processes]
            if self.leader is not None and copies == [self.lines()] * len(copies):
                return
        raise AssertionError("no leader, or copies that lack lines, after a minute")


def schedule(seed: int) -> None:
    """Shepherds die, sleep, lose their folders or etcd, and etcd answers nobody."""
    world = World(seed, 2 + seed % 3)
    world.settle()
    draw = world.draw
    for _ in range(5):
        victim = draw.randrange(len(world.processes))
        if world.leader is not None and draw.random() < 0.6:
            victim = world.leader
        what = draw.choice(["kill", "folder", "cut", "sleep", "etcd"])
        if what == "cut":
            world.cut.add(victim)
        elif what == "sleep":
            world.processes[victim].sleeps = world.now + draw.uniform(0.1, 6.0)
        elif what == "etcd":
            world.loss = draw.choice((0.3, 0.5))
        else:
            world.kill(victim, folder=what == "folder")
        world.run(draw.uniform(0.0, 6.0))
        if world.processes[victim].machine is None:
            world.start(victim)
        world.settle()
    assert len(world.counted) > 20, "hardly anything was counted"
    assert all(process.over is None for process in world.processes)


def first_violation(seeds: range) -> str:
    for seed in seeds:
        try:
            schedule(seed)
        except AssertionError as error:
            return f"seed {seed}: {error}"
    return ""


def test_one_leads_and_no_line_that_counts_is_lost() -> None:
    assert first_violation(range(6)) == ""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_same_in_many_schedules() -> None:
    """About 0.3 s each."""
    assert first_violation(range(1000, 3000)) == ""


ORIGINAL = {name: getattr(LeaderLease, name) for name in ("renewed", "appended")}


def counts_the_lease_from_the_answer(self, seconds, asked_at, now) -> Any:
    return ORIGINAL["renewed"](self, seconds, now + leader_lease.SLACK, now)


def holds_while_it_was_told_nothing(self, now) -> bool:
    del now
    return self.leads


def counts_what_etcd_refused(self, said, taken) -> Any:
    del taken
    return ORIGINAL["appended"](self, said, True)


def writes_whoever_leads(etcd, said: AppendLines) -> bool:
    lines = [
        etcd.put(etcd.line(n), line) for n, line in enumerate(said.lines, said.start)
    ]
    return etcd.transact([], lines)[0]


@pytest.mark.parametrize(
    ("of", "name", "mutant"),
    [
        (LeaderLease, "renewed", counts_the_lease_from_the_answer),
        (LeaderLease, "holds", holds_while_it_was_told_nothing),
        (LeaderLease, "appended", counts_what_etcd_refused),
        (etcd_elector, "_appended", writes_whoever_leads),
    ],
)
def test_a_mutant_is_noticed(
    monkeypatch: pytest.MonkeyPatch, of: Any, name: str, mutant: Callable[..., Any]
) -> None:
    monkeypatch.setattr(of, name, mutant)
    assert first_violation(range(60))


def comes_back(seed: int) -> None:
    """The only shepherd writes what etcd never hears of, and loses its lead."""
    world = World(seed, 1)
    world.settle()
    counted = len(world.lines())
    world.cut.add(0)
    for _ in range(3):
        world.write(0)
    world.run(5.0, writing=False)
    assert world.leader is None
    assert world.processes[0].log.count > counted
    world.settle()


def test_who_has_lines_that_never_counted_leads_again_without_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comes_back(1)
    monkeypatch.setattr(LedgerInMemory, "cut", lambda self, count: None)
    with pytest.raises(AssertionError, match="no leader"):
        comes_back(1)


def test_lines_that_etcd_lost_are_no_other_leaders() -> None:
    """Its keys were deleted from the middle: nobody goes on from what is left."""
    world = World(1)
    world.settle()
    gone = sorted(key for key in world.store.keys if b"/line/" in key)[3]
    del world.store.keys[gone]
    etcd = InMemory(world.store, lambda: "")
    with pytest.raises(StateMismatch, match="its keys were deleted"):
        etcd_elector._looked(etcd, Look(0))


def test_a_run_that_its_leader_ends_is_taken_over_by_nobody() -> None:
    world = World(3)
    world.settle()
    leader = world.leader
    assert leader is not None
    machine = world.processes[leader].machine
    assert machine is not None
    world.perform(leader, machine.ended("cancelled"))
    world.run(1.0, writing=False)
    world.kill(leader, folder=False)
    world.run(0.5, writing=False)
    rest = [
        process for number, process in enumerate(world.processes) if number != leader
    ]
    assert {process.over for process in rest} <= {"cancelled", None}
    assert any(process.over for process in rest)
    world.start(leader)  # it goes on, with --resume
    world.run(1.0, writing=False)
    assert world.processes[leader].over is None
