"""One thread that owns sockets, timers and the state of operations.

The state of a group is touched by its loop's thread only, so operations need no lock.
Other threads hand work over with `call`.
"""

import heapq
import itertools
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Protocol, cast

from pcp.errors import CollectiveAborted, RuntimeFault, Timeout, UsageError
from pcp.runtime.transport import mover
from pcp.runtime.transport.suspension import SuspendDetection

_log = logging.getLogger("pcp.runtime")
_MAX_SLEEP = 1.0
_EPOLL = "EpollSelector"
_WAKE = memoryview(b"\0")
WATCHFUL_SECONDS = 200e-6
"""The assumed cost of a sleep and a wake-up, which no system reports."""
_FEW_TIMERS = 256
"""Up to so many timers, cancelled ones are left in the heap."""


class Descriptor(Protocol):
    """A socket, or an object with the same interface."""

    def fileno(self) -> int:
        """The file descriptor's number."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Timer:
    """A call that will happen later unless cancelled."""

    __slots__ = ("_what", "when")

    def __init__(self, when: float, what: Callable[[], None]) -> None:
        self.when = when
        self._what: Callable[[], None] | None = what

    @property
    def waits(self) -> bool:
        """Whether it has neither happened nor been cancelled."""
        return self._what is not None

    def cancel(self) -> None:
        """Do not call; harmless if it already happened."""
        self._what = None

    def fire(self) -> None:
        """Call once."""
        what, self._what = self._what, None
        if what is not None:
            what()


class Loop:
    """A selector loop in a daemon thread."""

    def __init__(self, name: str = "pcp") -> None:
        self._selector = selectors.DefaultSelector()
        self._handlers: dict[int, Callable[[int], None]] = {}
        """By descriptor; the selector's own table is slow to ask."""
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._crowded = _FEW_TIMERS
        self._peeks = hasattr(mover.compiled, "peek") and hasattr(selectors, _EPOLL)
        self._order = itertools.count()
        self._awake = False
        self._closing = self._over = False
        self._asked: set[Future[Any]] = set()
        self._wake_in, self._wake_out = socket.socketpair()
        self._woken = memoryview(bytearray(4096))
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self.watch(self._wake_in, selectors.EVENT_READ, self._drain)
        self._suspension = SuspendDetection(2 * _MAX_SLEEP, 2 * _MAX_SLEEP)
        self._suspension.turned(time.monotonic())
        self.expecting = 0
        """How many operations may get a frame any moment: the loop then polls."""
        self.driver: Callable[[int, float], bool] | None = None
        """Waits in place of the selector, whose descriptor and limit it gets, in s;
        whether that may be readable."""
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._ident: int | None = self._thread.ident

    @property
    def inside(self) -> bool:
        """Whether the caller runs in the loop's own thread."""
        return threading.get_ident() == self._ident

    @property
    def closed(self) -> bool:
        """Whether the loop has been told to stop."""
        return self._closing

    @property
    def suspended(self) -> bool:
        """Whether this process was just suspended: a peer's silence proves nothing."""
        return self._suspension.listening

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the loop's, without its thread."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """UsageError in a forked process, whose loop has no thread."""
        if os.getpid() != self._process:
            raise UsageError(
                f"communicators do not survive a fork: this one is of process "
                f"{self._process}; make one of its own in process {os.getpid()}, or "
                "start processes by spawn"
            )

    def call(self, what: Callable[..., object], *args: Any) -> None:
        """Run `what(*args)` in the loop's thread, after earlier calls."""
        self._calls.append((what, args))
        if not self.inside:
            self._wake()

    def later(self, delay: float, what: Callable[[], None]) -> Timer:
        """Run `what` in `delay` seconds. Only from the loop's thread."""
        if len(self._timers) > self._crowded:
            # Deadlines of operations: most are cancelled long before they come.
            self._timers = [entry for entry in self._timers if entry[2].waits]
            heapq.heapify(self._timers)
            self._crowded = max(_FEW_TIMERS, 2 * len(self._timers))
        timer = Timer(time.monotonic() + delay, what)
        heapq.heappush(self._timers, (timer.when, next(self._order), timer))
        return timer

    def ask(self, what: Callable[[], Any], timeout: float = 10.0) -> Any:
        """The value of `what()`, computed in the loop's thread.

        CollectiveAborted when that has ended.
        """
        if self.inside:
            return what()
        self.check_process()
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                answer.set_result(what())
            except BaseException as error:
                answer.set_exception(error)

        self._asked.add(answer)
        self.call(run)
        if self._over:
            _unheard(answer)
        try:
            return answer.result(timeout)
        except TimeoutError:
            if answer.done():
                return answer.result(0)
            message = f"the communication thread did not answer in {timeout} s"
            raise Timeout(message) from None
        finally:
            self._asked.discard(answer)

    def watch(
        self, sock: Descriptor, events: int, handler: Callable[[int], None]
    ) -> None:
        """Call `handler(events)` when the socket is ready; 0 stops watching."""
        number = sock.fileno()
        known = number in self._handlers
        if not events:
            if known:
                self._selector.unregister(sock)
                del self._handlers[number]
            return
        if known:
            self._selector.modify(sock, events)
        else:
            self._selector.register(sock, events)
        self._handlers[number] = handler

    def close(self, timeout: float = 5.0) -> None:
        """Stop the thread, and close the sockets it watches."""
        if self._closing or self.forked:
            return
        self._closing = True
        self._wake()
        if not self.inside:
            self._thread.join(timeout)

    def _wake(self) -> None:
        if self._awake:
            return
        self._awake = True
        try:
            mover.send(self._wake_out, [_WAKE], mover.compiled)
        except (BlockingIOError, OSError):
            pass  # full: it wakes anyway; closed: nothing is left to wake

    def _drain(self, _events: int) -> None:
        try:
            mover.receive(self._wake_in, self._woken, mover.compiled)
        except BlockingIOError:
            pass
        self._awake = False

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        finally:
            # These sockets have no loop any more; the pair for wake-ups is last.
            for key in list(self._selector.get_map().values()):
                cast(socket.socket, key.fileobj).close()
            self._selector.close()
            self._wake_in.close()
            self._wake_out.close()
            self._over = True
            for answer in list(self._asked):
                _unheard(answer)
            self._ident = None  # another thread may get it

    def _turn(self) -> None:
        before = time.monotonic()
        pause = self._pause(before)
        ready: list[tuple[int, int]] = []
        if self.driver is not None:
            if self._guard(self.driver, self._selector.fileno(), pause) is not False:
                ready = self._select(0)
        else:
            if self.expecting and pause:
                ready = self._watched(before)
            ready = ready or self._select(pause)
        now = time.monotonic()
        self._suspension.turned(now, pause)
        for number, events in ready:
            # A handler before this one may have closed or changed this socket.
            handler = self._handlers.get(number)
            if handler is not None:
                self._guard(handler, events)
        for _ in range(len(self._calls)):
            what, args = self._calls.popleft()
            self._guard(what, *args)
        while self._timers and self._timers[0][0] <= now:
            self._guard(heapq.heappop(self._timers)[2].fire)

    def _select(self, pause: float) -> list[tuple[int, int]]:
        """The descriptors that are ready, and for what, within a pause."""
        if not pause and self._peeks and mover.compiled is not None:
            found = mover.compiled.peek(self._selector.fileno())
            return [(number, reads | writes << 1) for number, reads, writes in found]
        return [(key.fd, events) for key, events in self._selector.select(pause)]

    def _watched(self, now: float) -> list[tuple[int, int]]:
        """The events of the next moment, by polling.

        A thread that polls for as long as a sleep would cost, and sleeps then, pays at
        most twice the cost of the better choice (Karlin et al., SOSP 1991). Other
        threads get the processor in between.
        """
        end = now + WATCHFUL_SECONDS
        while not (ready := self._select(0)) and time.monotonic() < end:
            os.sched_yield()
        return ready

    def _pause(self, now: float) -> float:
        if self._calls:
            return 0.0
        if not self._timers:
            return _MAX_SLEEP
        return min(_MAX_SLEEP, max(0.0, self._timers[0][0] - now))

    def _guard(self, what: Callable[..., object], *args: Any) -> object:
        """The value of a handler; None for one that raises: the loop goes on."""
        try:
            return what(*args)
        except RuntimeFault as fault:
            _log.warning("%s", fault)
        except Exception:
            _log.exception("the communication thread met an unexpected error")
        return None


def _unheard(answer: Future[Any]) -> None:
    """Fail an answer of a closed loop, unless it is done."""
    with suppress(InvalidStateError):
        answer.set_exception(CollectiveAborted("the communication thread has ended"))
