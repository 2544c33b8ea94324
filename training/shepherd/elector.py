"""A shepherd among several: it stands by, and leads while its elector says so.

    elector = Voters(...) or EtcdElector(...)
    if elector.stand_by() is None:         # until this leads, or the run is over
        Ledger(path, wrote=elector.wrote)  # its lines go to the others

A line counts once the other shepherds would still have it if this one were lost:
`wrote` waits for that.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

from pcp.errors import PcpError, RuntimeFault
from pcp.training.coordinator.standby.election import Deposed, Lead, Over
from pcp.training.storage.ledger_copy import LedgerCopy

_COUNTS_SECONDS = 30.0


class NoLeader(RuntimeFault):
    """This shepherd leads no longer; its newest lines may not count."""


class ElectorMachine(Protocol):
    """The state machine of an elector: `Election`, or `LeaderLease`."""

    term: int
    """The number of the term in which this shepherd leads, or follows."""
    committed: int
    """The number of lines that count."""

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

    def ended(self, reason: str) -> Sequence[Any]:
        """The leader has ended the run."""
        ...


class Elector(ABC):
    """One shepherd among several. Its subclass has set `_machine` before it is used."""

    _machine: ElectorMachine
    _end_seconds: float
    """The last message of a leader, that the run is over, is sent within so long."""

    def __init__(self, path: Path, log: Callable[[str], None]) -> None:
        """`path` is the ledger's, which is locked from now on; ConfigError as there."""
        self._log = log
        self.copy = LedgerCopy(path)
        self.identities: set[str] = set()
        """The identities of other shepherds: their signatures in the ledger count."""
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closing = threading.Event()
        self._over: str | None = None
        self._fault: PcpError | None = None

    def stand_by(self, turn: Callable[[], None] = lambda: None) -> str | None:
        """Follow the ledger until this shepherd leads (None), or the run is over (why).

        `turn` is called about twice a second. Raises the fault by which this shepherd
        failed.
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
        """The number of the term in which this shepherd leads."""
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
                    raise NoLeader("lines of the ledger reach no other shepherd")

    def check(self) -> None:
        """`NoLeader` if this shepherd leads no longer."""
        with self._lock:
            self._leading()

    def end(self, reason: str) -> None:
        """Tell the other shepherds that the run is over."""
        with self._lock:
            self._perform(self._machine.ended(reason))
        time.sleep(self._end_seconds)

    @abstractmethod
    def close(self) -> None:
        """Stop: this shepherd neither leads nor stands by any more."""

    @abstractmethod
    def _carry_out(self, effect: Any) -> None:
        """Carry out an effect that is this machine's own; called with the lock."""

    def _perform(self, effects: Sequence[Any]) -> None:
        """Carry out the machine's effects; called with the lock."""
        for effect in effects:
            match effect:
                case Lead(term=term):
                    self._log(f"this shepherd leads in term {term}")
                case Deposed(reason=reason):
                    self._log(f"this shepherd leads no longer: {reason}")
                case Over(reason=reason):
                    self._over = reason
                case _:
                    self._carry_out(effect)
        self._changed.notify_all()

    def _leading(self) -> None:
        if self._fault is not None:
            raise self._fault
        if not self._machine.holds(time.monotonic()):
            raise NoLeader("another shepherd may lead by now")

    def _start(self, name: str, work: Callable[..., None], *args: Any) -> Thread:
        """Start a thread; if it dies, this shepherd fails."""

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
        """This shepherd can neither lead nor stand by; called with the lock."""
        self._fault = fault
        self._closing.set()
        self._changed.notify_all()
