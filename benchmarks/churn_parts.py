"""What `churn` keeps about a run: its processes, its members and the report."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = "PCP_CHURN_RUN"
"""In the environment of every process of a run: its number."""
SPARE = {"fds": 6, "shared": 300, "threads": 2, "mib": 96}
"""What a member may use more of than a newcomer. Shared memory is kept for later: up to
`segments.SHARED.most` pieces, two descriptors each, and what peers have of it."""

_NO_COORDINATOR = "no coordinator yet: "


class Ledger:
    """Which operations were done in which epochs, and who must know of it.

    An operation happens on all survivors of its epoch or on none. So it is done
    once, for as long as somebody survives: who was taken for dead may not know
    that it was done, and when all others are dead it is done again.
    """

    def __init__(self) -> None:
        self.done: dict[int, dict[int, str]] = {}
        """The result's digest by epoch, for every operation."""
        self.epochs: dict[int, list[str]] = {}
        """Their members."""
        self._agreed: defaultdict[int, set[str]] = defaultdict(set)
        self._aborted: defaultdict[tuple[int, int], set[str]] = defaultdict(set)

    @property
    def anew(self) -> int:
        """How often an operation was done again."""
        return sum(len(outcomes) - 1 for outcomes in self.done.values())

    def begin(self, epoch: int, names: list[str]) -> str | None:
        """Somebody is in an epoch with these; what is wrong with that."""
        if self.epochs.setdefault(epoch, names) != names:
            return f"epoch {epoch} has members {names} and {self.epochs[epoch]}"
        return None

    def agree(self, epoch: int, name: str) -> None:
        """This member has the state of its epoch."""
        self._agreed[epoch].add(name)

    def finish(self, number: int, name: str, epoch: int, digest: str) -> str | None:
        """Somebody has done an operation; what is wrong with that."""
        outcomes = self.done.setdefault(number, {})
        if outcomes.setdefault(epoch, digest) != digest:
            return (
                f"operation {number} on {name} in epoch {epoch}: {digest}, and "
                f"elsewhere {outcomes[epoch]}"
            )
        for other in outcomes.keys() - {epoch}:
            first, last = sorted((epoch, other))
            if heirs := self.heirs(first, last):
                return (
                    f"operation {number} was done in epoch {first} and again in "
                    f"epoch {last}, where {', '.join(heirs)} had to know of it"
                )
        return None

    def abort(self, number: int, name: str, epoch: int) -> None:
        """An operation did not happen on this member."""
        self._aborted[number, epoch].add(name)

    def split(self) -> list[str]:
        """Operations done on some of an epoch's survivors and aborted on others."""
        last = {n: epoch for epoch in sorted(self.epochs) for n in self.epochs[epoch]}
        return [
            f"operation {number} was done in epoch {epoch}, but not on {name}, which "
            f"survived it"
            for (number, epoch), names in self._aborted.items()
            for name in sorted(names)
            if epoch in self.done.get(number, {}) and last.get(name, 0) > epoch
        ]

    def heirs(self, first: int, last: int) -> list[str]:
        """Who of the last epoch must know what was done in the first.

        A name is taken once: who is still there under it never was taken for dead.
        Who agreed with such a one on the state knows as much.
        """
        knowing = set(self.epochs[first])
        for epoch in sorted(self.epochs):
            if first < epoch < last and knowing.intersection(self.epochs[epoch]):
                knowing |= self._agreed[epoch]
        return [name for name in self.epochs[last] if name in knowing]


@dataclass
class Report:
    """What happened."""

    operations: int = 0
    seconds: float = 0.0
    fired: Counter = field(default_factory=Counter)
    """Faults by kind."""
    in_flight: int = 0
    """Faults on a member that was inside an operation."""
    sizes: Counter = field(default_factory=Counter)
    """Epochs by their number of members."""
    processes: int = 0
    said: Counter = field(default_factory=Counter)
    """What members said, by kind."""
    anew: int = 0
    """Operations done again, when nobody was left of the group that had done them."""
    longest: float = 0.0
    """The most seconds between two operations that were done."""
    footprints: dict[str, dict[str, int]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def judge(self, ledger: Ledger) -> None:
        """Take over what can be said in the end."""
        self.anew = ledger.anew
        self.violations += ledger.split()

    def __str__(self) -> str:
        fired = ", ".join(f"{n} {kind}" for kind, n in sorted(self.fired.items()))
        sizes = ", ".join(f"{n} of {size}" for size, n in sorted(self.sizes.items()))
        prints = "\n".join(f"  {k}: {v}" for k, v in self.footprints.items())
        return (
            f"{self.operations} operations in {self.seconds:.0f} s, "
            f"{self.processes} member processes\n"
            f"faults: {fired}; {self.in_flight} inside an operation\n"
            f"epochs (members): {sizes}\n"
            f"members said: {dict(self.said)}\n"
            f"longest time without a result: {self.longest:.1f} s\n"
            f"done again after the loss of a whole group: {self.anew}\n"
            f"{prints}\nviolations: {self.violations or 'none'}"
        )


class Child:
    """A process whose lines are read by a thread; killed and waited for in the end."""

    def __init__(self, command: list[str], run: int, errors: Any, hear: Callable):
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, MARK: str(run)},
        )
        self._reader = threading.Thread(target=self._read, args=(hear,), daemon=True)
        self._reader.start()

    def _read(self, hear: Callable[[str], None]) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            hear(line)
        hear("")

    def tell(self, line: str) -> None:
        """Send a line, if there is somebody to read it."""
        assert self.popen.stdin is not None
        with contextlib.suppress(OSError):
            self.popen.stdin.write(line + "\n")
            self.popen.stdin.flush()

    def end(self) -> None:
        """Make sure that it is gone."""
        self.popen.kill()
        self.popen.wait(10)
        self._reader.join(10)
        for pipe in (self.popen.stdin, self.popen.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # pyright: ignore[reportOptionalMemberAccess]


@dataclass
class Member:
    """A process as the injector sees it."""

    label: str
    child: Child
    name: str = ""
    """Under which it is in the group now."""
    alive: bool = True
    stopped: bool = False
    excused: bool = False
    """It was stopped or cut since it joined: it may be taken for dead."""
    busy: bool = False
    """Inside an operation, as far as it said."""
    heard: float = field(default_factory=time.monotonic)
    """When it said something last, or went on after a stop."""
    rounds: int = 0
    """Since the faults ended."""
    print: dict[str, int] = field(default_factory=dict)
    total: dict[str, str] | None = None

    @property
    def quiet(self) -> float:
        """For how long (s) it has said nothing, though it could."""
        return 0.0 if self.stopped else time.monotonic() - self.heard

    def outgrown(self, fresh: "Member") -> list[str]:
        """What it uses much more of than a newcomer."""
        return [
            f"{self.name} has {self.print[what]} {what}, a newcomer {fresh.print[what]}"
            for what, spare in SPARE.items()
            if self.print[what] > fresh.print[what] + spare
        ]


def footprint(pid: int) -> dict[str, int]:
    """What a process must not use more and more of."""
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text().split()[1])
    return {
        "fds": len(list((process / "fd").iterdir())),
        "threads": len(list((process / "task").iterdir())),
        "mib": pages * os.sysconf("SC_PAGE_SIZE") >> 20,
    }


def left_behind(run: int) -> list[str]:
    """Processes of a run that still live; they are killed."""
    mark = f"{MARK}={run}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(process.name)
                os.kill(int(process.name), signal.SIGKILL)
    return found


def complaints(folder: Path) -> list[str]:
    """What processes said on standard error, in files of their names.

    That the coordinator cannot be reached is news, not a complaint: it was killed.
    """
    told = defaultdict(list)
    for path in folder.iterdir():
        lines = path.read_text().splitlines() if path.name != "state" else []
        text = "\n".join(line for line in lines if not line.startswith(_NO_COORDINATOR))
        if text.strip():
            told[text].append(path.name)
    return [
        f"{', '.join(names)} said on standard error: {text[-3000:]}"
        for text, names in told.items()
    ]
