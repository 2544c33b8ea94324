"""A listener: sockets on which a loop accepts connections."""

import logging
import socket
from collections.abc import Callable

from pcp.errors import RuntimeFault
from pcp.runtime.transport import link, unix_socket
from pcp.runtime.transport.address import format_address
from pcp.runtime.transport.event_loop import Loop

_AT_ONCE = 32
"""Connections accepted in a turn: the next ones can wait in the kernel's queue."""
EXHAUSTED_SECONDS = 1.0
"""The pause after an accept failed for lack of descriptors."""
_log = logging.getLogger("pcp.runtime")


class Listener:
    """Listening sockets; calls `arrived(socket, peer)` in the loop's thread."""

    def __init__(self, address: str, near: bool = False) -> None:
        """Listens at once; ConfigError where the address is not available.

        `near`: also on the Unix socket of the same address (`unix_socket`).
        """
        listener = link.listen(address)
        host, self.port = listener.getsockname()[:2]
        self.address = format_address(host, self.port)
        """The address `host:port` of the listening socket."""
        self._listeners = [listener]
        if near and (nearby := unix_socket.listen(self.address)) is not None:
            self._listeners.append(nearby)
        self._closed = False

    def attend(self, loop: Loop, arrived: Callable[[socket.socket, str], None]) -> None:
        """Accept connections from now on. In the loop's thread."""
        for listener in self._listeners:
            self._attend(listener, loop, arrived)

    def _attend(
        self,
        listener: socket.socket,
        loop: Loop,
        arrived: Callable[[socket.socket, str], None],
    ) -> None:
        def accept(_events: int) -> None:
            for _ in range(_AT_ONCE):
                try:
                    arrival = link.accept(listener)
                except RuntimeFault as fault:
                    # The kernel would announce it again and again.
                    _log.warning("%s: %s", self.address, fault)
                    loop.watch(listener, 0, accept)
                    loop.later(
                        EXHAUSTED_SECONDS,
                        lambda: self._attend(listener, loop, arrived),
                    )
                    return
                if arrival is None:
                    return
                arrived(*arrival)

        if not self._closed:
            loop.watch(listener, 1, accept)

    def close(self, loop: Loop) -> None:
        """Accept no more connections."""

        def unwatch() -> None:
            self._closed = True
            for listener in self._listeners:
                loop.watch(listener, 0, lambda _: None)

        loop.ask(unwatch)
        for listener in self._listeners:
            listener.close()
