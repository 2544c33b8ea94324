"""One wire, read by one thread while others write: plain, or encrypted.

OpenSSL's state must not be used by two threads at once, and a socket's own
timeout belongs to both directions. So the wire never blocks: whoever can do
nothing at the moment lets go of it, and waits for the descriptor.
"""

import errno
import select
import threading
import time

from pcp.runtime.transport.link import Wire


class Duplex:
    """A connected wire that threads share; deadlines are monotonic times."""

    def __init__(self, wire: Wire) -> None:
        wire.setblocking(False)
        self._wire = wire
        self._using = threading.Lock()

    def recv_into(self, room: memoryview, deadline: float) -> int:
        """Bytes into `room`; how many, 0 at the end. TimeoutError, OSError."""
        while True:
            try:
                with self._using:
                    return self._wire.recv_into(room)
            except BlockingIOError:
                self._wait(select.POLLIN, deadline)

    def sendall(self, content: memoryview, deadline: float) -> None:
        """All of it; one thread at a time. TimeoutError, OSError."""
        while content:
            try:
                with self._using:
                    count = self._wire.sendmsg([content])
                content = content[count:]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline)

    def shutdown(self, how: int) -> None:
        """Say that nothing more will come; wakes whoever waits."""
        with self._using:
            self._wire.shutdown(how)

    def close(self) -> None:
        """Let go of it."""
        with self._using:
            self._wire.close()

    def _wait(self, event: int, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        descriptor = self._wire.fileno()
        if descriptor < 0:
            raise OSError(errno.EBADF, "closed")
        poll = select.poll()
        poll.register(descriptor, event)
        if not poll.poll(max(1.0, 1000 * left)):
            raise TimeoutError
