"""Operations of an elastic group whose members are killed, stopped and cut off.

    python benchmarks/churn.py [--operations 1000] [--seed 1] [--limit 60]
                               [--no-shared-memory]

Real processes: `pcp coordinator` and 2 to 8 members (`churn_member`) with several
tensors under way. At a random moment of every second operation a random member is
killed (SIGKILL), stopped (SIGSTOP, and continued before or after it is taken for
dead) or cut off (its connections are shut in the kernel); sometimes the coordinator
is killed and started again. Newcomers replace the dead.

Prints what was done and what was found. It ends with an error when an operation had
two outcomes among survivors (`churn_parts.Ledger`) or another sum than its members'
inputs, changed an input although it was aborted, took longer than the limit; when one
member hangs; when a survivor of many epochs holds more descriptors, threads or memory
than a newcomer; or when a process is left behind.
"""

import argparse
import heapq
import itertools
import json
import queue
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from churn_member import Job
from churn_parts import (
    SPARE,
    Child,
    Ledger,
    Member,
    Report,
    complaints,
    footprint,
    left_behind,
)

FAULTS = {"kill": 40, "stop": 27, "cut one": 12, "cut all": 15, "coordinator": 6}
"""How often each happens, of a hundred."""
FEWEST, MOST, QUIET_ROUNDS = 2, 8, 12
Event = tuple["Member", dict[str, Any]]


class Injector:
    """One run; everything that is drawn follows from the seed, but not the timing."""

    def __init__(
        self,
        operations: int,
        seed: int,
        limit: float,
        silence: float,
        members: int,
        shared_memory: bool = True,
    ) -> None:
        self.random = random.Random(seed)
        self.limit, self.silence, self.first = limit, silence, members
        self.run = random.SystemRandom().getrandbits(62)
        self.report = Report(operations)
        self.job = Job("", "", operations, 3, silence, limit, shared_memory)
        self.members: list[Member] = []
        self.elder: Member | None = None
        """Spared from death for a while, so that somebody grows old."""
        self._labels = itertools.count()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._armed: set[int] = set()
        self.ledger = Ledger()
        self._began: dict[int, float] = {}
        self._usual = 0.05
        self._elders = 0
        self._last = time.monotonic()
        self._folder = Path()
        self._start = time.monotonic()
        self.trace: IO[str] | None = None
        """Where everything that happens is written."""

    # Processes.

    @contextmanager
    def processes(self) -> Iterator[None]:
        """A coordinator and the first members; none of them survives."""
        with tempfile.TemporaryDirectory(prefix="pcp-churn-") as folder:
            self._folder = Path(folder)
            try:
                self._coordinate("0")
                for _ in range(self.first):
                    self._spawn()
                self.elder = self.random.choice(self.members)
                yield
            finally:
                for member in self.members:
                    member.child.end()
                self.coordinator.end()
                for process in left_behind(self.run):
                    self._wrong(f"process {process} is left behind")
                self.report.violations += complaints(self._folder)

    def _coordinate(self, port: str) -> None:
        said: queue.SimpleQueue[str] = queue.SimpleQueue()
        command = ["-m", "pcp.tools.cli", "coordinator", "--port", port]
        command += ["--members", str(self.first), "--silence", str(self.silence)]
        command += ["--state", str(self._folder / "state")]
        with (self._folder / "coordinator").open("a") as errors:
            self.coordinator = Child(
                [sys.executable, *command], self.run, errors, said.put
            )
        if port != "0":
            return  # it will come
        line = said.get(timeout=self.limit)
        if "listening on" not in line:
            raise SystemExit(f"no coordinator: {line}")
        self.job = Job(**{**asdict(self.job), "at": line.split()[-1]})

    def _spawn(self) -> None:
        label = f"m{next(self._labels)}"
        job = {**asdict(self.job), "name": label}
        script = str(Path(__file__).with_name("churn_member.py"))
        command = [sys.executable, script, json.dumps(job)]
        made: list[Member] = []

        def hear(line: str) -> None:
            while not made:
                time.sleep(0.001)
            self._events.put((made[0], json.loads(line) if line else {"what": "gone"}))

        with (self._folder / label).open("w") as errors:
            child = Child(command, self.run, errors, hear)
        made.append(Member(label, child))
        self.members += made
        self.report.processes += 1

    @property
    def living(self) -> list[Member]:
        """Members whose process was not killed."""
        return [member for member in self.members if member.alive]

    # The run.

    def churn(self) -> Report:
        """Faults until all operations are done, then quiet; the report."""
        with self.processes():
            while len(self.ledger.done) < self.report.operations and self._sound():
                self._turn()
            self.report.seconds = time.monotonic() - self._start
            self.report.judge(self.ledger)
            self._timers = [t for t in self._timers if t[2].__name__ == "wake"]
            if self._sound():
                self._quieten()
        return self.report

    def _sound(self) -> bool:
        return not self.report.violations

    def _turn(self) -> None:
        """Hear one member, or do what is due."""
        now = time.monotonic()
        if self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
            return
        wait = self._timers[0][0] - now if self._timers else 1.0
        try:
            member, facts = self._events.get(timeout=min(wait, 1.0))
        except queue.Empty:
            if now - self._last > self.limit + 10:
                self._hang(f"nothing was done for {self.limit + 10:.0f} s")
            return
        self._note(member, **facts)
        member.heard = time.monotonic()
        self._look_for_silent()
        if member.alive:
            self.report.said[facts["what"]] += 1
            getattr(self, f"_hear_{facts['what']}")(member, facts)

    def _look_for_silent(self) -> None:
        """Each for itself: the others go on without one that hangs."""
        limit = 2 * self.limit + 10
        if hung := [m.name for m in self.living if m.quiet > limit]:
            self._hang(f"{', '.join(hung)} said nothing for {limit:.0f} s")

    def _hang(self, why: str) -> None:
        self._wrong(why)
        for member in self.living:
            member.child.popen.send_signal(signal.SIGCONT)
            member.child.popen.send_signal(signal.SIGUSR1)
        time.sleep(1)

    def _note(self, member: Member | None, **facts: object) -> None:
        if self.trace is not None:
            who = member.label if member else "coordinator"
            when = time.monotonic() - self._start
            self.trace.write(f"{when:8.3f} {who}: {facts}\n")

    def _later(self, delay: float, what: Callable[[], None]) -> None:
        when = time.monotonic() + delay
        heapq.heappush(self._timers, (when, next(self._order), what))

    def _wrong(self, why: str | None) -> None:
        if why is not None:
            self.report.violations.append(why)

    # What members say.

    def _hear_joined(self, member: Member, facts: dict) -> None:
        member.name, member.excused = facts["name"], member.stopped

    def _hear_begin(self, member: Member, facts: dict) -> None:
        member.print = {key: facts[key] for key in SPARE}
        member.busy = True
        member.rounds += not facts["counts"]
        epoch, names = facts["epoch"], facts["names"]
        self.report.sizes[len(names)] += epoch not in self.ledger.epochs
        self._wrong(self.ledger.begin(epoch, names))
        for number in facts["ops"] if facts["counts"] else ():
            self._began.setdefault(number, time.monotonic())
            if number % 2 and number not in self._armed:
                self._armed.add(number)
                delay = self.random.uniform(0, 1.2) * self._usual
                self._later(delay, lambda names=names: self._strike(names))
        if facts["counts"]:
            self._change_elder(max(facts["ops"]))

    def _hear_done(self, member: Member, facts: dict) -> None:
        member.busy = False
        number, epoch = facts["op"], facts["epoch"]
        if number not in self.ledger.done:
            now = time.monotonic()
            self.report.longest = max(self.report.longest, now - self._last)
            took = now - self._began[number]
            self._usual += 0.2 * (min(took, 1.0) - self._usual)
            self._last = now
        self._wrong(self.ledger.finish(number, member.name, epoch, facts["digest"]))

    def _hear_aborted(self, member: Member, facts: dict) -> None:
        member.busy = False
        self.ledger.abort(facts["op"], member.name, facts["epoch"])

    def _hear_cut(self, member: Member, facts: dict) -> None:
        pass

    def _hear_agreed(self, member: Member, facts: dict) -> None:
        self.ledger.agree(facts["epoch"], member.name)

    def _hear_expelled(self, member: Member, facts: dict) -> None:
        member.busy = False
        if not member.excused:
            self.report.said["expelled without a reason"] += 1

    def _hear_wrong(self, member: Member, facts: dict) -> None:
        self._wrong(f"{member.name or member.label}: {facts['why']}")

    def _hear_end(self, member: Member, facts: dict) -> None:
        member.total = facts["total"]

    def _hear_gone(self, member: Member, facts: dict) -> None:
        member.alive = False
        code = member.child.popen.wait(10)
        if code:
            self._wrong(f"{member.name or member.label} ended with {code}")

    # Faults.

    def _strike(self, names: list[str]) -> None:
        """Something happens to one of these members."""
        kind = self.random.choices(list(FAULTS), list(FAULTS.values()))[0]
        if kind == "coordinator":
            self._restart_coordinator()
            return
        able = [m for m in self.living if m.name in names and not m.stopped]
        if kind == "kill":
            able = [member for member in able if member is not self.elder]
        if not able:
            kind, able = "cut all", [m for m in self.living if not m.stopped]
        victim = self.random.choice(able)
        self.report.fired[kind] += 1
        self.report.in_flight += victim.busy
        self._note(victim, what=f"FAULT: {kind}")
        match kind.split():
            case ["kill"]:
                self._kill(victim)
            case ["stop"]:
                self._stop(victim)
            case ["cut", _]:
                victim.excused = True
                victim.child.tell(kind)
        for _ in range(self.random.randint(FEWEST, MOST) - len(self.living)):
            self._spawn()

    def _kill(self, victim: Member) -> None:
        victim.alive = False
        victim.child.end()

    def _stop(self, victim: Member) -> None:
        """For less than its silence may last, or for more; the elder for less."""
        factors = (0.05, 0.5) if victim is self.elder else (0.05, 2.0)
        victim.stopped = victim.excused = True
        victim.child.popen.send_signal(signal.SIGSTOP)

        def wake() -> None:
            victim.stopped, victim.heard = False, time.monotonic()
            self._note(victim, what="continued")
            if victim.alive:
                victim.child.popen.send_signal(signal.SIGCONT)

        self._later(self.silence * self.random.uniform(*factors), wake)

    def _restart_coordinator(self) -> None:
        self.report.fired["coordinator"] += 1
        self._note(None, what="FAULT: kill")
        self.coordinator.end()
        self._coordinate(self.job.at.rsplit(":")[-1])

    def _change_elder(self, number: int) -> None:
        """Four in a run: all kinds of ranks come to be killed."""
        turn = number * 4 // self.report.operations
        if turn <= self._elders:
            return
        able = [m for m in self.living if m.name and not m.stopped]
        able = [m for m in able if m is not self.elder] or able
        self.elder = self.random.choice(able)
        self._elders = turn

    # The end.

    def _quieten(self) -> None:
        """No faults any more: compare an old member with a new one, and end."""
        self._last = time.monotonic()
        self._until(lambda: all(m.rounds >= 3 and not m.stopped for m in self.living))
        self._spawn()
        for member in self.members:
            member.rounds = 0
        self._until(lambda: all(m.rounds >= QUIET_ROUNDS for m in self.living))
        if not self._sound():
            return
        self._compare_footprints(self.members[-1])
        last = self.living
        for member in last:
            member.child.tell("finish")
        self._until(lambda: not self.living)
        if not self._sound():
            return
        if len({json.dumps(member.total, sort_keys=True) for member in last}) != 1:
            self._wrong(f"different states: {[(m.name, m.total) for m in last]}")
        for member in last:
            if member.total is None:
                self._wrong(f"{member.name} did not say its state")

    def _until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + 2 * self.limit
        while self._sound() and not condition():
            self._last = time.monotonic()
            if time.monotonic() > until:
                late = ", ".join(f"{m.name}: {m.rounds}" for m in self.living)
                self._hang(f"no end in {2 * self.limit:.0f} s; rounds: {late}")
            self._turn()

    def _compare_footprints(self, fresh: Member) -> None:
        prints = self.report.footprints
        for member in self.living:
            prints[member.name] = member.print
            self.report.violations += member.outgrown(fresh)
        prints["coordinator"] = mine = footprint(self.coordinator.popen.pid)
        if mine["fds"] > len(self.living) + 16 or mine["threads"] > 4:
            self._wrong(f"the coordinator of {len(self.living)} has {mine}")


def churn(
    operations: int,
    seed: int = 1,
    limit: float = 60.0,
    silence: float = 1.5,
    members: int = 4,
    trace: IO[str] | None = None,
    *,
    shared_memory: bool = True,
) -> Report:
    """One run's report; `violations` is empty when all went well."""
    injector = Injector(operations, seed, limit, silence, members, shared_memory)
    injector.trace = trace
    return injector.churn()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--operations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds: hung")
    parser.add_argument("--silence", type=float, default=1.5, help="seconds: dead")
    parser.add_argument("--trace", type=argparse.FileType("w"), help="everything")
    parser.add_argument(
        "--no-shared-memory", action="store_true", help="TCP on one machine, too"
    )
    flags = parser.parse_args()
    report = churn(
        flags.operations,
        flags.seed,
        flags.limit,
        flags.silence,
        trace=flags.trace,
        shared_memory=not flags.no_shared_memory,
    )
    print(report)
    return 1 if report.violations else 0


if __name__ == "__main__":
    raise SystemExit(main())
