"""Signals of commands that hold a run: it ends well, and is told what is left.

Until a run has begun, and at a second signal, a command ends at once, by an exception:
so the compiler it waits for ends too. In between the first signal asks for what `pcp
control cancel` does.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pcp.tools.support.command import Stopped
from pcp.tools.support.signals import at_once
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage.run_folder import RunFolder

_SAME_SECONDS = 1.0  # a terminal and a supervisor pass on one and the same signal


def saving(shepherd: Shepherd) -> Callable[[int], None]:
    """Cancel the run at the first signal, end at once at the second."""
    first: list[float] = []

    def stop(number: int) -> None:
        if not first:
            first.append(time.monotonic())
            shepherd.interrupt(number)
        elif time.monotonic() - first[0] > _SAME_SECONDS:
            at_once(number)

    return stop


@contextmanager
def told(folder: RunFolder) -> Iterator[None]:
    """Where a signal ends the block: say what there is to go on from."""
    try:
        yield
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        raise Stopped(number, f"interrupted: {_left(folder)}") from stop


@contextmanager
def no_compiler_left() -> Iterator[None]:
    """Whatever iree-compile still runs when the block is left ends with it."""
    try:
        yield
    finally:
        if iree := sys.modules.get("pcp.compiler.iree"):
            iree.stop_all()


def exit_code(shepherd: Shepherd) -> int:
    """Of a command whose run has ended: 0, or that of the signal that ended it."""
    number = shepherd.interrupted
    return 128 + number if number and shepherd.cancelled else 0


def _left(folder: RunFolder) -> str:
    if not folder.begun:
        return "the run had not begun, nothing is left of it"
    for saved in checkpoints.folders(folder.path)[:1]:
        number = int(saved.name.rpartition("_")[2])
        return f"checkpoint of round {number} in {saved}; --resume goes on"
    return f"no checkpoint yet in {folder.path}; --resume goes on from the start"
