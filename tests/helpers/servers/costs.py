"""What tests cost in processor and wall time: `pytest --costs`.

Processor time is that of the process of tests and of all that it started, also of
servers that live on. The rest of the wall time the test waits: for a clock, for a peer,
or for a processor. Both are as Linux says them.
"""

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SHOWN = 60
TICKS = os.sysconf("SC_CLK_TCK")  # of a second: what Linux counts in

Cost = tuple[float, float]  # seconds of processor, of the clock


class Costs:
    """A plugin of a process of tests, and of the one that controls those."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._last = _used()
        self._tests: defaultdict[str, Cost] = defaultdict(lambda: (0.0, 0.0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        """Each phase of a test carries what was used since the phase before."""
        report = yield
        now = _used()
        report.cost = now[0] - self._last[0], now[1] - self._last[1]
        self._last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase to its test's sum."""
        new = getattr(report, "cost", (0.0, 0.0))
        self._tests[report.nodeid] = _sum(self._tests[report.nodeid], new)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """The costliest files; in the option's file all of them, then all tests."""
        files: defaultdict[str, Cost] = defaultdict(lambda: (0.0, 0.0))
        for name, cost in self._tests.items():
            for part in ("all", name.partition("::")[0]):
                files[part] = _sum(files[part], cost)
        lines = ["processor  wall seconds", *_ranked(files)]
        terminalreporter.section("costs")
        for line in lines[:SHOWN]:
            terminalreporter.write_line(line)
        if self._file != "-":
            text = "\n".join([*lines, *_ranked(self._tests)])
            Path(self._file).write_text(text + "\n")


def _ranked(costs: Mapping[str, Cost]) -> list[str]:
    by_cost = sorted(costs.items(), key=lambda item: item[1], reverse=True)
    return [f"{p:9.2f} {wall:9.2f}  {name}" for name, (p, wall) in by_cost]


def _sum(a: Cost, b: Cost) -> Cost:
    return a[0] + b[0], a[1] + b[1]


def _used() -> Cost:
    """What this process and its descendants, ended ones too, have used by now."""
    processor = 0.0
    for pid in _family(os.getpid()):
        with contextlib.suppress(OSError):  # its parent counts it from now on
            _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            processor += sum(map(int, fields.split()[11:15])) / TICKS
    return processor, time.monotonic()


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants, without a look at every process there is."""
    yield pid
    with contextlib.suppress(OSError):  # it has just ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            own = Path(f"/proc/{pid}/task/{thread}/children").read_text()
            for child in own.split():
                yield from _family(int(child))
