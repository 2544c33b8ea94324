"""A run that goes on without the terminal it was started from."""

import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from pcp.errors import RuntimeFault
from pcp.tools.support.lines import say
from pcp.training.storage.run_folder import RunFolder

OUTPUT = "train.log"
_LOOK_S = 0.1
_OWN = ("--detach", "--resume", "--run")


def detached(folder: RunFolder, argv: Sequence[str]) -> int:
    """Start `pcp train` with these words in a session of its own; 0 once it trains.

    `RuntimeFault` with its last line where it ends before.
    """
    words = [*_without(argv), "--no-dashboard", "--resume", "--run", str(folder.path)]
    output = folder.path / OUTPUT
    before = folder.ledger.stat().st_size if folder.begun else 0
    with open(output, "ab") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "pcp.tools.cli", "train", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    while child.poll() is None:
        if folder.begun and folder.ledger.stat().st_size > before:
            # Where this process lives on, it learns of the other's end.
            threading.Thread(target=child.wait, daemon=True).start()
            say(f"process {child.pid} trains in {folder.path}; what it says: {output}")
            say(f"watch it:  pcp attach {folder.path}")
            say(f"end it:    pcp control cancel --run {folder.path}")
            return 0
        time.sleep(_LOOK_S)
    return _ended(child.returncode, output.read_text(errors="replace").splitlines())


def _ended(code: int, lines: Sequence[str]) -> int:
    """It ended before it trained: what it said last, and its exit code."""
    if code == 0:
        say(lines[-1] if lines else "the run is complete")
        return 0
    why = next((line for line in reversed(lines) if "error: " in line), f"exit {code}")
    raise RuntimeFault(f"it ended before it trained: {why.partition('error: ')[2]}")


def _without(argv: Sequence[str]) -> list[str]:
    """The words of a command line without those that are said anew."""
    kept: list[str] = []
    words = iter(argv)
    for word in words:
        name, equals, _ = word.partition("=")
        if name not in _OWN:
            kept.append(word)
        elif name == "--run" and not equals:
            next(words, None)
    return kept
