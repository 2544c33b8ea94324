"""What SIGTERM, Ctrl-C and a terminal that closes (SIGHUP) do to a command.

`on_signals` interrupts it: for commands that wait, and clean up behind a `with`. A
handler of Python's runs between any two steps of the main thread, which may hold the
very lock that it would wait for; so what stops others goes through `stop_on_signals`.

A signal that arrives between the interpreter's last look for signals and the system
call in which the main thread then waits, or in another thread, does not end that wait:
its handler would run when the wait is over, however long that takes. So `on_signals`
ends the wait by a second signal, SIGURG, which does nothing else.
"""

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pcp.tools.support.command import Stopped, Work

Stop = Callable[[int], None]


def at_once(number: int) -> None:
    """End the command with this signal's exit code."""
    raise Stopped(number)


@contextmanager
def on_signals(
    stop: Stop,
    numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
) -> Iterator[None]:
    """Call `stop(number)` in the main thread on these signals while the block runs.

    In another thread there is nothing to do: signals do not come there. What `nohup`
    has the command ignore stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [n for n in numbers if n != signal.SIGHUP or not _ignored(n)]
    before = {n: signal.signal(n, lambda got, _: stop(got)) for n in heard}
    try:
        with _waits_ended():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_NUDGE = signal.SIGURG
_NUDGES = (0.02, 0.2, 1.0)  # seconds between them: the first may come too early, too


@contextmanager
def _waits_ended() -> Iterator[None]:
    """No wait of the main thread outlasts a signal while the block runs."""
    main = threading.get_ident()

    def nudge(number: int) -> None:
        for pause in _NUDGES if number != _NUDGE else ():
            time.sleep(pause)
            signal.pthread_kill(main, _NUDGE)

    handler = signal.signal(_NUDGE, lambda *_: None)
    said = _told(nudge)
    before = signal.set_wakeup_fd(said.fileno(), warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        said.close()
        signal.signal(_NUDGE, handler)


def _ignored(number: int) -> bool:
    return signal.getsignal(number) == signal.SIG_IGN


def in_order(work: Work) -> Work:
    """`work`, which SIGTERM ends by an exception, as Ctrl-C does.

    For commands that start others: a compiler, or a process for each rank. Not for
    those that must end at once, in whatever they are.
    """

    def ended(argv: Sequence[str]) -> int | None:
        with on_signals(at_once, (signal.SIGTERM,)):
            return work(argv)

    return ended


def stop_on_signals(stop: Stop) -> None:
    """Call `stop(number)` on SIGTERM and SIGINT, in a thread: it may take locks.

    The interpreter writes a signal's number to the socket whichever thread it hits.
    """
    said = _told(stop)
    signal.set_wakeup_fd(said.detach(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)


def _told(heed: Stop) -> socket.socket:
    """A socket for the interpreter's wake-ups; a thread heeds them until it closes."""
    heard, said = socket.socketpair()
    said.setblocking(False)

    def listen() -> None:
        with heard:
            while number := heard.recv(1):
                heed(number[0])

    threading.Thread(target=listen, name="pcp-signals", daemon=True).start()
    return said
