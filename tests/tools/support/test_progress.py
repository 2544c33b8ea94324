"""What a terminal is told of work that takes long, and what is known the next time."""

import io
import re
import threading
from pathlib import Path

import pytest

from pcp.tools.support import progress


class Terminal(io.StringIO):
    """Remembers what was written; `told` is set by the first line."""

    def __init__(self, tty: bool = True) -> None:
        super().__init__()
        self._tty, self.told = tty, threading.Event()

    def isatty(self) -> bool:
        return self._tty

    def write(self, text: str) -> int:
        self.told.set()
        return super().write(text)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PCP_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(progress, "QUIET_S", 0.001)


def test_a_terminal_is_told_and_the_line_goes() -> None:
    screen = Terminal()
    with progress.doing("planning", 4, screen):
        assert screen.told.wait(20)
    assert screen.getvalue().startswith("\033[Kplanning: 0 s\r")
    assert screen.getvalue().endswith("\033[K")


def test_the_line_says_how_far_it_is() -> None:
    screen = Terminal()
    with progress.doing("compiling", 4, screen) as now:
        assert screen.told.wait(20)
        screen.told.clear()
        now("cpu:host: 3 bytes")
        assert screen.told.wait(20)
    assert re.search(r"compiling: \d+ s \(cpu:host: 3 bytes\)\r", screen.getvalue())


def test_a_run_is_given_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REPORT_S", 0.001)
    lines, told, screen = list[str](), threading.Event(), Terminal()

    def report(line: str) -> None:
        lines.append(line)
        told.set()

    with progress.doing("compiling", 4, screen, report=report) as now:
        now("1 of 2")
        assert told.wait(20)
    assert re.match(r"compiling: \d+ s", lines[-1])
    assert screen.getvalue() == ""


def test_the_next_time_it_is_known_how_long() -> None:
    assert progress.expected("planning", 8) is None
    with progress.doing("planning", 4, Terminal(False)):
        threading.Event().wait(0.02)
    first = progress.expected("planning", 4)
    assert first is not None
    assert progress.expected("planning", 8) == 2 * first
    assert progress.expected("other", 8) is None


def test_what_fails_is_no_measure_and_a_pipe_hears_nothing() -> None:
    pipe = Terminal(False)

    def fails() -> None:
        with progress.doing("planning", 4, pipe):
            threading.Event().wait(0.02)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fails()
    assert pipe.getvalue() == ""
    assert progress.expected("planning", 4) is None


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"planning": "x"}', '{"planning": -1}']
)
def test_a_file_that_is_none_counts_for_nothing(content: str, tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / progress.FILE).write_text(content)
    assert progress.expected("planning") is None


@pytest.mark.parametrize(
    ("about", "elapsed", "said"),
    [(None, 5.0, ""), (9.0, 5.0, ", about 4 s left"), (5.0, 9.0, ", any moment")],
)
def test_what_is_left(about: float | None, elapsed: float, said: str) -> None:
    assert progress.left(about, elapsed) == said
