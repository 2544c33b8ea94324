"""Worlds of communicators for tests: in this process, over either carrier."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.transport.fault_injection import FaultPlan

CARRIERS = ("in_process", "tcp", "memory")
T = TypeVar("T")


def together(things: Sequence[Any], what: Callable[[Any], T]) -> list[T]:
    """`what(thing)` for all at once, a thread each; the values in order."""
    with ThreadPoolExecutor(max(1, len(things))) as pool:
        return list(pool.map(what, things))


def outcome(what: Callable[[], T]) -> "T | Exception":
    """The value, or the exception it raised."""
    try:
        return what()
    except Exception as error:
        return error


@contextmanager
def endpoints(count: int, **options: Any) -> Iterator[list[Endpoint]]:
    """Listening endpoints, closed at the end."""
    made: list[Endpoint] = []
    try:
        for _ in range(count):
            made.append(Endpoint.listen("127.0.0.1:0", **options))
        yield made
    finally:
        for endpoint in made:
            endpoint.close()


def form(
    members: Sequence[Endpoint], epoch: int = 1, timeout: float = 10.0, scope: str = ""
) -> list[Communicator]:
    """One group of all of them, in order."""
    addresses = [endpoint.address for endpoint in members]
    return together(
        range(len(members)),
        lambda rank: members[rank].form(epoch, addresses, rank, timeout, scope),
    )


@contextmanager
def world(
    carrier: str, size: int, faults: dict[int, FaultPlan] | None = None
) -> Iterator[list[Communicator]]:
    """All members of a world, closed at the end."""
    faults = faults or {}
    if carrier == "in_process":
        members = Communicator.in_process(size, faults=faults)
        try:
            yield members
        finally:
            leave(members)
        return
    with endpoints(size, shared_memory=carrier == "memory") as made:
        for rank, plan in faults.items():
            made[rank].faults = plan
        members = form(made)
        yield members
        leave(members)


def leave(members: Sequence[Communicator]) -> None:
    """Close them one after another: none can wait for the next."""
    for member in members:
        member.close(timeout=0)


class Member:
    """A member in a process of its own, running `member_process`; see there."""

    def __init__(self, **request: Any) -> None:
        script = Path(__file__).with_name("member_process.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next thing it says."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, text: str) -> None:
        """Send it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)

    def wait(self, seconds: float = 10.0) -> int:
        """Its exit status; negative for a signal."""
        return self.process.wait(seconds)

    def end(self) -> None:
        """Make sure it is gone."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def member(**request: Any) -> Iterator[Member]:
    """A `Member`, gone at the end."""
    process = Member(**request)
    try:
        yield process
    finally:
        process.end()


def form_with(child: Member, made: Sequence[Endpoint]) -> list[Communicator]:
    """Ranks 0 and 1 of a first group, here; rank 2 is a process."""
    addresses = [*(endpoint.address for endpoint in made), child.line()]
    child.tell(json.dumps(addresses))
    return together([0, 1], lambda rank: made[rank].form(1, addresses, rank, 20))


def eventually(
    condition: Callable[[], T],
    seconds: float = 5.0,
    instead: Callable[[], object] = str,
) -> T:
    """The first true value of a condition; an error that says `instead()` without."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"not within {seconds:g} s: {instead()}"
        time.sleep(0.005)
    return found
