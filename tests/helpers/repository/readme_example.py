"""The tour's programs of the collectives alone, as text, and as processes."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.servers.processes import free_port

ROOT = Path(__file__).parents[3]
MEMBERS = 4
SECONDS = 120


def block() -> str:
    """The first program under "The collectives alone", as it stands there."""
    text = (ROOT / "docs" / "tour.md").read_text()
    found = re.search(r"## The collectives alone\n+```python\n(.*?)```", text, re.S)
    assert found is not None, "the tour has lost its block"
    return found.group(1)


def arrays(seconds: float = SECONDS) -> list[str]:
    """The sums of the members' arrays when the program has ended, one run of it."""
    program = block()
    assert "29500" in program
    program = program.replace("29500", str(free_port()))
    program += "\nprint('array', *sorted(set(array.tolist())))\n"
    command = [sys.executable, "-c", program]
    running = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(MEMBERS)
    ]
    try:
        return [process.communicate(timeout=seconds)[0].strip() for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many other programs that want a processor."""
    burning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()
