"""What SIGTERM, Ctrl-C and a terminal that closes (SIGHUP) do to a command.

`on_signals` interrupts it: for commands that wait, and clean up behind a `with`. A
handler of Python's runs between any two steps of the main thread, which may hold the
very lock that it would wait for; so what stops others goes through `stop_on_signals`.
"""

import signal
import socket
import threading
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
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    heard, said = socket.socketpair()
    said.setblocking(False)

    def heed(_open: socket.socket = said) -> None:
        while number := heard.recv(1):
            stop(number[0])

    threading.Thread(target=heed, name="pcp-signals", daemon=True).start()
    signal.set_wakeup_fd(said.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
