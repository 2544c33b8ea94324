"""What `churn` keeps about a run: its processes, its members and the report."""

import contextlib
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MARK = "PCP_CHURN_RUN"
"""In the environment of every process of a run: its number."""


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
    longest: float = 0.0
    """The most seconds between two operations that were done."""
    footprints: dict[str, dict[str, int]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

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
                pipe.close()  # type: ignore[union-attr]


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
    rounds: int = 0
    """Since the faults ended."""
    print: dict[str, int] = field(default_factory=dict)
    total: dict[str, str] | None = None


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
