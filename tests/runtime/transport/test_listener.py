"""Where connections come in."""

import errno
import socket

import pytest
from helpers.worlds.communicators import eventually

from pcp.runtime.transport.address import parse_address
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.listener import Listener

EXHAUSTED = "pcp.runtime.transport.listener.EXHAUSTED_SECONDS"


class Exhausted:
    """A listener of a process that has no descriptors left, for a while."""

    def __init__(self, real: socket.socket, refusals: int) -> None:
        self._real = real
        self.refusals = refusals
        self.asked = 0
        self.fileno, self.close = real.fileno, real.close

    def accept(self) -> tuple[socket.socket, tuple]:
        self.asked += 1
        if self.asked <= self.refusals:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._real.accept()


def test_without_descriptors_it_waits_and_says_so(monkeypatch, caplog) -> None:
    """The connection stays in the kernel's queue, which announces it at once again."""
    monkeypatch.setattr(EXHAUSTED, 0.05)
    loop, found = Loop("listener"), []
    entrance = Listener("127.0.0.1:0")
    listener = Exhausted(entrance._listeners[0], refusals=2)
    monkeypatch.setattr(entrance, "_listeners", [listener])
    try:
        loop.call(entrance.attend, loop, lambda *arrival: found.append(arrival))
        place = parse_address(entrance.address)
        with socket.create_connection(place, timeout=30) as sock:
            eventually(lambda: bool(found))
            host, port = sock.getsockname()
        assert found[0][1] == f"{host}:{port}"
        assert caplog.text.count("too many open files") == 2
        assert listener.asked <= 4  # refused twice, taken, and nobody else
    finally:
        entrance.close(loop)
        loop.close()
        for sock, _ in found:
            sock.close()


def test_a_listener_closed_in_its_pause_stays_closed(monkeypatch, caplog) -> None:
    monkeypatch.setattr(EXHAUSTED, 0.05)
    loop = Loop("listener")
    entrance = Listener("127.0.0.1:0")
    listener = Exhausted(entrance._listeners[0], refusals=9)
    monkeypatch.setattr(entrance, "_listeners", [listener])
    loop.call(entrance.attend, loop, pytest.fail)
    try:
        place = parse_address(entrance.address)
        with socket.create_connection(place, timeout=30):
            eventually(lambda: listener.asked > 0)
            entrance.close(loop)
            asked, passed = listener.asked, []
            loop.ask(lambda: loop.later(0.2, lambda: passed.append(1)))
            eventually(lambda: bool(passed))
            assert listener.asked == asked
            assert "unexpected error" not in caplog.text
    finally:
        loop.close()
