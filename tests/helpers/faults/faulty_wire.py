"""A wire between two sockets that does to bytes what networks do."""

import contextlib
import socket
import threading
import time
from dataclasses import dataclass, field


@dataclass
class FaultyWire:
    """Passes bytes on in both directions; what is harmful only from the left.

    Positions are bytes since the beginning. `delay` seconds before each piece of
    at most `piece` bytes; one bit is changed at `corrupt`; the connection is
    reset at `cut`, ended politely at `truncate`, and stands still from `stall`.
    """

    delay: float = 0.0
    piece: int = 1 << 16
    corrupt: int | None = None
    cut: int | None = None
    truncate: int | None = None
    stall: int | None = None
    _threads: list[threading.Thread] = field(default_factory=list)
    _socks: list[socket.socket] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    def between(
        self,
        left: socket.socket,
        near: socket.socket,
        others: tuple[socket.socket, socket.socket],
    ) -> tuple[socket.socket, socket.socket]:
        """The two ends when the wire joins the two connections in the middle."""
        far, right = others
        self._socks = [near, far]
        for sock in self._socks:
            sock.settimeout(0.1)
        for source, target, harmful in ((near, far, True), (far, near, False)):
            thread = threading.Thread(
                target=self._pump, args=(source, target, harmful), daemon=True
            )
            thread.start()
            self._threads.append(thread)
        return left, right

    def close(self) -> None:
        """Pass nothing on any more."""
        self._over.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a wire that does not end"
        for sock in self._socks:
            sock.close()

    def _pump(
        self, source: socket.socket, target: socket.socket, harmful: bool
    ) -> None:
        at = 0
        with contextlib.suppress(OSError):
            while not self._over.is_set():
                try:
                    data = source.recv(self.piece)
                except TimeoutError:
                    continue
                if not data:
                    target.shutdown(socket.SHUT_WR)
                    return
                time.sleep(self.delay)
                data, goes_on = self._harmed(data, at) if harmful else (data, True)
                self._pass_on(target, data)
                at += len(data)
                if not goes_on:
                    self._stop(target)
                    return

    def _pass_on(self, target: socket.socket, data: bytes) -> None:
        view = memoryview(data)
        while len(view) and not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                view = view[target.send(view) :]

    def _harmed(self, data: bytes, at: int) -> tuple[bytes, bool]:
        """What is left of a piece, and whether there will be more."""
        for position in (self.cut, self.truncate, self.stall):
            if position is not None and position < at + len(data):
                return data[: position - at], False
        if self.corrupt is not None and at <= self.corrupt < at + len(data):
            changed = bytearray(data)
            changed[self.corrupt - at] ^= 0x20
            return bytes(changed), True
        return data, True

    def _stop(self, target: socket.socket) -> None:
        if self.stall is not None:
            self._over.wait()
            return
        if self.cut is not None:
            # No lingering: the peer gets a reset.
            linger = b"\1\0\0\0\0\0\0\0"
            target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        for sock in self._socks:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        if self.cut is not None:
            target.close()
