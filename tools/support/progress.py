"""What goes on while a command works: on a terminal, what, since when and how long yet.

    with doing("compiling for 4 devices", size=model_bytes) as now:
        ...
        now("2 of 4 modules")

How long it takes is known from the last time here, by what it was and how large:
`rates.json` beside the compiled modules. Nothing is said of what takes under two
seconds, nor in a pipe. A run, whose screen is its own, is given a line now and then.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TextIO

from pcp import outside, strict_json, whole_file
from pcp.tools.support.cache_folder import cache_folder

FILE = "rates.json"
QUIET_S = 2.0
_TICK_S = 0.5
REPORT_S = 10.0
"""Between the lines that a run is given."""
_MOST = 200
"""Rates that are kept, the newest."""


@contextmanager
def doing(
    what: str,
    size: int = 1,
    file: TextIO | None = None,
    *,
    report: Callable[[str], None] | None = None,
) -> Iterator[Callable[[str], None]]:
    """Say `what` goes on, to `report` or the terminal; keep its time if it ends well.

    The block is given a function that says how far it is.
    """
    out, began, ended = file or sys.stderr, time.monotonic(), threading.Event()
    about, far = expected(what, size), [""]

    def line() -> str:
        elapsed = time.monotonic() - began
        return f"{what}: {elapsed:.0f} s{left(about, elapsed)}{far[0]}"

    def now(text: str) -> None:
        far[0] = f" ({text})"

    tell = partial(_draw, out) if report is None else partial(_report, report)
    teller = threading.Thread(target=tell, args=(line, ended), daemon=True)
    if report is not None or out.isatty():
        teller.start()
    try:
        yield now
    finally:
        ended.set()
        if teller.ident is not None:
            teller.join()
    seconds = time.monotonic() - began
    if seconds > QUIET_S:  # less: it was kept from another time
        _remember(what, seconds / max(size, 1))


def expected(what: str, size: int = 1) -> float | None:
    """The seconds that something takes, by the last time; None: there was none."""
    rate = _rates().get(what)
    return None if rate is None else rate * size


def left(about: float | None, elapsed: float) -> str:
    """How long something still takes, in words; "" where nobody knows."""
    if about is None:
        return ""
    rest = about - elapsed
    return f", about {rest:.0f} s left" if rest >= 1 else ", any moment"


def _report(
    report: Callable[[str], None], line: Callable[[], str], ended: threading.Event
) -> None:
    """Give the line again and again until it ends."""
    while not ended.wait(REPORT_S):
        report(line())


def _draw(out: TextIO, line: Callable[[], str], ended: threading.Event) -> None:
    """Write the line anew until it ends; the cursor stays where it begins."""
    if ended.wait(QUIET_S):
        return
    with suppress(OSError, ValueError):  # the terminal is gone
        while True:
            out.write(f"\033[K{line()}\r")
            out.flush()
            if ended.wait(_TICK_S):
                break
        out.write("\033[K")
        out.flush()


def _file() -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / FILE


def _rates() -> dict[str, float]:
    path = _file()
    if path is None:
        return {}
    try:
        known = outside.read_json(path)
    except (OSError, ValueError):
        return {}
    if not isinstance(known, dict):
        return {}
    return {k: v for k, v in known.items() if isinstance(v, float) and v > 0}


def _remember(what: str, rate: float) -> None:
    path = _file()
    if path is None:
        return
    known = _rates()
    known.pop(what, None)
    newest = dict([*known.items(), (what, rate)][-_MOST:])
    with suppress(OSError):  # it costs an estimate
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file.replacing(path) as file:
            file.write(strict_json.dumps(newest).encode())
