"""The supervisor of one child process: restarts, with growing pauses, up to a limit.

Exit code 0 means that the child's work is done, 2 that its command line is wrong, 3
that it would fail again, as without its device: these end the supervision. Any other
code, and any signal, is a crash. The pause before a restart doubles from 0.1 s, and
begins anew once a child has lived for a while. Too many crashes in a short time end the
supervision with an error.
"""

import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pcp.errors import RuntimeFault
from pcp.training.process.child_environment import child_environment

HOPELESS = 3
"""The exit code of a child that would fail again in the same way."""

HUNG = 70
"""The exit code of a worker with a hung or dead thread; it is started again."""

FINAL = {
    0: "its work is done",
    2: "it refused its command line",
    HOPELESS: "it cannot work here; its own messages say why",
}
"""Exit codes after which a child is not started again."""

_STOP_SECONDS = 5.0


@dataclass(frozen=True)
class Policy:
    """When to restart. Times in seconds."""

    first_pause: float = 0.1
    longest_pause: float = 10.0
    settled: float = 10.0
    """A child that has lived for so long is in no crash loop."""
    crashes: int = 6
    within: float = 60.0
    """The supervisor gives up after `crashes` crashes in `within` seconds."""


class Child(Protocol):
    """The interface of a process for the supervisor; `subprocess.Popen` has it."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process; its exit code."""
        ...

    def send_signal(self, sig: int) -> None:
        """Send a signal."""
        ...

    def kill(self) -> None:
        """Kill it."""
        ...


Spawn = Callable[[Sequence[str]], Child]


def spawner(environment: Mapping[str, str] | None = None, **options) -> Spawn:
    """Start processes that end with this one if they call `die_with_parent`."""

    def spawn(command: Sequence[str]) -> Child:
        values = child_environment(environment)
        return subprocess.Popen(command, env=values, **options)

    return spawn


class Supervisor:
    """Runs `command`, again after each crash. `run` returns the last exit code.

    `restarted(command)` gives the command line of a restart.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Callable[[str], None],
        spawn: Spawn,
        policy: Policy | None = None,
        restarted: Callable[[Sequence[str]], Sequence[str]] = lambda command: command,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command, self._restarted = command, restarted
        self._log, self._spawn, self._clock = log, spawn, clock
        self._policy = policy or Policy()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._crashes: deque[float] = deque(maxlen=self._policy.crashes)
        self.child: Child | None = None
        """The running process, or the last one."""
        self.restarts = 0
        """How often the child was restarted."""

    def run(self) -> int:
        """Supervise; `RuntimeFault` when the child keeps on crashing."""
        command, pause = self._command, self._policy.first_pause
        while True:
            began = self._clock()
            code = self._once(command)
            if code in FINAL or self._stopping.is_set():
                return code
            if self._clock() - began > self._policy.settled:
                pause = self._policy.first_pause
                self._crashes.clear()
            self._count_crash(code)
            self._log(f"the child {ended(code)}; starting it again in {pause:.1f} s")
            if self._stopping.wait(pause):
                return code
            pause = min(self._policy.longest_pause, 2 * pause)
            command, self.restarts = self._restarted(self._command), self.restarts + 1

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal to the child, and do not restart it."""
        self._stopping.set()
        with self._lock:
            if self.child is not None:
                self.child.send_signal(number)

    def kill_child(self) -> None:
        """Kill the child after `stop`, if it does not end by itself."""
        with self._lock:
            child = self.child
        if child is None:
            return
        try:
            child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(_STOP_SECONDS)

    def _once(self, command: Sequence[str]) -> int:
        with self._lock:
            if self._stopping.is_set():
                return 0
            try:
                self.child = self._spawn(command)
            except OSError as error:  # no memory, most likely: counts as a crash
                self._log(f"the child cannot be started: {error.strerror}")
                return 1
        return self.child.wait()

    def _count_crash(self, code: int) -> None:
        now, policy = self._clock(), self._policy
        self._crashes.append(now)
        full = len(self._crashes) == policy.crashes
        if full and now - self._crashes[0] < policy.within:
            raise RuntimeFault(
                f"{' '.join(self._command)}: {policy.crashes} crashes within "
                f"{policy.within:g} s (the child {ended(code)}); giving up. Its own "
                "messages say what is wrong"
            )


def ended(code: int) -> str:
    """How a process ended, by its return code; negative is a signal."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}"
