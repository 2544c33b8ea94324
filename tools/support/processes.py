"""A command's own processes on this machine: one for each rank, which meet."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pcp.errors import PcpError, RuntimeFault
from pcp.tools.support.signals import at_once, on_signals
from pcp.training.process.child_environment import child_environment
from pcp.training.process.supervisor import ended

Process = subprocess.Popen[str]

#: Starts the process of a rank, which is to meet the others at an address.
Start = Callable[[int, str], Process]

#: Gets a line that a process printed.
Hear = Callable[[str], None]


def start(command: Sequence[str], rank: int, address: str) -> Process:
    """`pcp <command> --rank R --connect ADDRESS`; its output is read.

    It ends with this process (`child_environment`).
    """
    line = [sys.executable, "-m", "pcp.tools.cli", *command]
    line += ["--rank", str(rank), "--connect", address]
    environment = child_environment({**os.environ, "PYTHONUNBUFFERED": "1"})
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment)


class MemberKilled(RuntimeFault):
    """A signal ended one of the processes, and the others are ended."""


@contextmanager
def ranks(
    count: int, start: Start, prefix: str, hear: Hear | None = None
) -> Iterator[Sequence[Process]]:
    """Processes that met where rank 0 listens; all have ended behind the block.

    Rank 0 prints its address behind `prefix`. Raises `PcpError` if it ends before,
    `MemberKilled` where a signal ended it.
    What it prints after that `hear` gets, line by line and in a thread, or who reads
    its output inside the block.
    """
    running: list[Process] = []
    listening = None
    # SIGTERM is an exception here, so that the processes end with the command.
    with on_signals(at_once, (signal.SIGTERM,)):
        try:
            running.append(start(0, "127.0.0.1:0"))
            address = _meeting(running[0], prefix)
            if hear is not None:
                listening = threading.Thread(target=_listen, args=(running[0], hear))
                listening.start()
            running += (start(rank, address) for rank in range(1, count))
            yield running
        finally:
            _end(running)
            if listening is not None:
                listening.join()
            for process in running:
                if process.stdout:
                    process.stdout.close()


def _meeting(first: Process, prefix: str) -> str:
    """The address that rank 0 prints."""
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith(prefix):
            return line.removeprefix(prefix).strip()
    if (code := first.wait()) < 0:
        raise _killed(0, code)
    raise PcpError("rank 0 ended before it listened; its error stands above")


def _listen(process: Process, hear: Hear) -> None:
    """Read on where nobody wants to hear it: a full pipe would hold the process up."""
    assert process.stdout is not None
    for line in process.stdout:
        with suppress(BrokenPipeError):
            hear(line)


def _end(running: Sequence[Process]) -> None:
    """Ask those that still run to end, and see that they do."""
    for process in running:
        if process.poll() is None:
            process.terminate()
    for process in running:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait(running: Sequence[Process]) -> None:
    """Until all have ended well; `RuntimeFault` names the rank that did not.

    `MemberKilled` where a signal ended one: of the others, some may have heard of it
    and ended before.
    """
    waiting = dict(enumerate(running))
    while waiting:
        for rank, process in list(waiting.items()):
            try:
                code = process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            if code:
                raise _failed(running, rank, code)
            del waiting[rank]


def _failed(running: Sequence[Process], rank: int, code: int) -> RuntimeFault:
    """The error of who was killed, or else of the rank that failed."""
    for killed, process in enumerate(running):
        if (signalled := process.poll()) is not None and signalled < 0:
            return _killed(killed, signalled)
    return RuntimeFault(
        f"rank {rank} {ended(code)}, and what it said stands above; "
        "the others are ended"
    )


def _killed(rank: int, code: int) -> MemberKilled:
    """The error of a rank that a signal ended."""
    return MemberKilled(f"rank {rank} {ended(code)}, and the others are ended")
