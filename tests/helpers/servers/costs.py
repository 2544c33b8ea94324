"""What tests cost, by file: processor and wall time, with `pytest --costs`.

Processor time is that of the process of tests and of all that it started, also of
servers that live on. The rest of the wall time the file waits: for a clock, for a peer,
or for a processor.
"""

import time
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

SHOWN = 60


class Costs:
    """A plugin of a process of tests, and of the one that controls those."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._last = _used()
        self._processor: Counter[str] = Counter()
        self._wall: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        """Each phase of a test carries what was used since the phase before."""
        report = yield
        now = _used()
        report.costs = [b - a for a, b in zip(self._last, now, strict=True)]
        self._last = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase to its file's sum."""
        file = report.nodeid.partition("::")[0]
        processor, wall = getattr(report, "costs", (0.0, 0.0))
        self._processor[file] += processor
        self._wall[file] += wall

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """The files by processor time, all in the file of the option."""
        ranks = [
            f"{seconds:8.1f} {self._wall[file]:8.1f}  {file}"
            for file, seconds in self._processor.most_common()
        ]
        head = f"{'processor':>8} {'wall':>7}  seconds of a file"
        total = f"{self._processor.total():8.1f} {self._wall.total():8.1f}  all"
        lines = [head, total, *ranks]
        if self._file != "-":
            with open(self._file, "w") as out:
                out.write("\n".join(lines) + "\n")
        terminalreporter.section("costs")
        for line in lines[:SHOWN]:
            terminalreporter.write_line(line)


def _used() -> tuple[float, float]:
    """Seconds of processor by this process and its descendants, and of the clock."""
    own = psutil.Process()
    processor = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            processor += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue  # it has just ended: its parent counts it from now on
    return processor, time.monotonic()
