"""How a shepherd among several stands by and leads, whoever decides which of them does.

    elector = Voters(...) or EtcdElector(...)
    if elector.stand_by() is None:         # until this one leads, or the run is over
        Ledger(path, wrote=elector.wrote)  # its lines go to the others

What is written in a term counts once the others would have it if this shepherd were
lost: `wrote` waits for that.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from pcp.errors import PcpError, RuntimeFault
from pcp.training.storage.ledger_copy import LedgerCopy

_COUNTS_SECONDS = 30.0


class NoLeader(RuntimeFault):
    """This shepherd leads no longer; what it wrote since may not count."""


class Machine(Protocol):
    """What decides: `Election`, or `LeaderLease`."""

    term: int
    """In which this shepherd leads."""
    committed: int
    """Lines that count."""

    @property
    def leader(self) -> object:
        """The leader, as far as is known."""
        ...

    def holds(self, now: float) -> bool:
        """Whether this shepherd leads."""
        ...

    def grew(self, now: float) -> Sequence[Any]:
        """The leader wrote lines."""
        ...


class Elector(ABC):
    """One shepherd among several. Its subclass has set `_machine` before it is used."""

    _machine: Machine

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        """`path` is the ledger's, which is locked from now on; ConfigError as there."""
        self._log = log
        self.copy = LedgerCopy(path)
        self.identities: set[str] = set()
        """Of shepherds that were heard: their signatures in the ledger count."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closing = threading.Event()
        self._over: str | None = None
        self._fault: PcpError | None = None

    def stand_by(self, turn: Callable[[], None] = lambda: None) -> str | None:
        """Follow the ledger until this shepherd leads: None; or the run is over: why.

        `turn` is called about twice a second. What ends this shepherd's part is raised.
        """
        with self._changed:
            self.copy.hold()
            while not self._machine.holds(time.monotonic()) and self._over is None:
                if self._fault is not None:
                    raise self._fault
                leader = self._machine.leader
                self._changed.wait(0.5)
                if self._machine.leader not in (None, leader):
                    self._log(f"shepherd {self._machine.leader} leads")
                turn()
            if self._over is not None:
                return self._over
            self.copy.release()
            return None

    @property
    def term(self) -> int:
        """In which this shepherd leads."""
        with self._lock:
            return self._machine.term

    def wrote(self, line: bytes, sync: bool) -> None:
        """The leader's ledger has this line; with `sync`, wait until it counts.

        `NoLeader` where it does not: this shepherd leads no longer.
        """
        with self._changed:
            self._leading()
            self.copy.wrote(line)
            wanted = self.copy.count
            self._perform(self._machine.grew(time.monotonic()))
            until = time.monotonic() + _COUNTS_SECONDS
            while sync and self._machine.committed < wanted:
                self._leading()
                if not self._changed.wait(0.1) and time.monotonic() > until:
                    raise NoLeader("what is written here reaches nobody else")

    def check(self) -> None:
        """`NoLeader` if this shepherd leads no longer."""
        with self._lock:
            self._leading()

    @abstractmethod
    def end(self, reason: str) -> None:
        """The run is over: the others need not wait for it."""

    @abstractmethod
    def close(self) -> None:
        """Take no part any more."""

    @abstractmethod
    def _perform(self, effects: Sequence[Any]) -> None:
        """Do what the machine asks for; called with the lock."""

    def _leading(self) -> None:
        if self._fault is not None:
            raise self._fault
        if not self._machine.holds(time.monotonic()):
            raise NoLeader("another shepherd may lead by now")

    def _start(self, name: str, work: Callable[..., None], *args: Any) -> Thread:
        """A thread, with whose end this shepherd's part ends."""

        def all_of_it() -> None:
            try:
                work(*args)
            except Exception as error:
                why = f"{name} died: {type(error).__name__}: {error}"
                with self._lock:
                    self._fail(RuntimeFault(why))
                raise

        thread = Thread(target=all_of_it, daemon=True, name=name)
        thread.start()
        return thread

    def _fail(self, fault: PcpError) -> None:
        """This shepherd can take no part any more; called with the lock."""
        self._fault = fault
        self._closing.set()
        self._changed.notify_all()
