"""The workers of one machine, each supervised, each on its own device."""

import signal
import threading
from collections.abc import Callable, Sequence

from pcp.errors import PcpError, RuntimeFault
from pcp.training.process.supervisor import FINAL, Policy, Spawn, Supervisor

# Workers that start together would read the same files and dial at once.
STAGGER_SECONDS = 0.2


class NodeManager:
    """Runs `scale` supervised workers; `command(i)` is the command line of slot i."""

    def __init__(
        self,
        scale: int,
        command: Callable[[int], Sequence[str]],
        *,
        log: Callable[[str], None],
        spawn: Spawn,
        policy: Policy | None = None,
        stagger: float = STAGGER_SECONDS,
    ) -> None:
        self._log, self._stagger = log, stagger
        self._stopping = threading.Event()
        self._errors: dict[int, PcpError] = {}
        self._codes: dict[int, int] = {}
        self.supervisors = [
            Supervisor(command(i), log=self._tell(i), spawn=spawn, policy=policy)
            for i in range(scale)
        ]
        self._threads = [
            threading.Thread(target=self._supervise, args=(i,), daemon=True)
            for i in range(scale)
        ]

    def start(self) -> None:
        """Start the workers of all slots, one after another."""
        for thread in self._threads:
            thread.start()
            self._stopping.wait(self._stagger)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for all slots to end; False if `timeout` seconds were not enough."""
        for thread in self._threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)

    def result(self) -> None:
        """Raise the error for which a slot gave up, once all slots have ended."""
        if self._errors:
            slots = ", ".join(map(str, sorted(self._errors)))
            first = self._errors[min(self._errors)]
            raise RuntimeFault(f"worker {slots} gave up: {first}")
        for slot, code in sorted(self._codes.items()):
            if code and code in FINAL:
                raise RuntimeFault(f"worker {slot} {_how(code)}")

    @property
    def alive(self) -> int:
        """How many slots are still supervised."""
        return sum(thread.is_alive() for thread in self._threads)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End all workers: by a signal first, by SIGKILL if they ignore it."""
        self._stopping.set()
        for supervisor in self.supervisors:
            supervisor.stop(number)
        for supervisor in self.supervisors:
            supervisor.kill_child()

    def _supervise(self, slot: int) -> None:
        try:
            code = self._codes[slot] = self.supervisors[slot].run()
            if code and code in FINAL:
                self._log(f"worker {slot} {_how(code)}; it is not started again")
        except PcpError as error:
            self._errors[slot] = error
            self._log(f"worker {slot}: {error}")

    def _tell(self, slot: int) -> Callable[[str], None]:
        return lambda text: self._log(f"worker {slot}: {text}")


def _how(code: int) -> str:
    return f"ended with exit code {code}: {FINAL[code]}"
