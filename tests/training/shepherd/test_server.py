"""The shepherd's door under strangers that come in and say nothing."""

import socket

from helpers.worlds.communicators import eventually

from pcp.errors import RuntimeFault
from pcp.runtime.transport import link
from pcp.training.shepherd import server as hubs
from pcp.training.shepherd.server import Connection, Received, Server
from pcp.training.wire.channel import connect
from pcp.training.wire.messages import StatusQuery


def test_silent_strangers_keep_nobody_out(monkeypatch) -> None:
    monkeypatch.setattr(hubs, "HANDSHAKE_SECONDS", 60.0)
    monkeypatch.setattr(hubs, "MAX_STRANGERS", 8)
    monkeypatch.setattr(hubs, "MAX_CONNECTIONS", 12)
    hub, strangers = Server("127.0.0.1", 0), []
    try:
        first = connect("127.0.0.1", hub.port, 5)
        strangers.append(first)
        first.send(StatusQuery())
        event = hub.next(10)
        assert isinstance(event, Received)
        for _ in range(40):
            strangers.append(socket.create_connection(("127.0.0.1", hub.port)))
        late = connect("127.0.0.1", hub.port, 30)
        strangers.append(late)
        late.send(StatusQuery())
        answered = []

        def heard() -> bool:
            found = hub.next(0.05)
            if isinstance(found, Received):
                answered.append(found.connection)
            return bool(answered)

        eventually(heard, 30)
        # Who had said something is still there.
        assert isinstance(event.connection, Connection)
        event.connection.refuse("the end of the test")
        assert first.receive(10).kind == "refused"
    finally:
        hub.close()
        for stranger in strangers:
            stranger.close()


def test_a_hub_without_descriptors_waits_and_lets_in_who_came(
    monkeypatch, caplog
) -> None:
    """For ever deaf to newcomers after one failed accept: nobody would know why."""
    monkeypatch.setattr(hubs, "EXHAUSTED_SECONDS", 0.05)
    real, left = link.accept, [2]

    def exhausted(listener: socket.socket):
        if left[0]:
            left[0] -= 1
            raise RuntimeFault("there are too many open files")
        return real(listener)

    monkeypatch.setattr(link, "accept", exhausted)
    hub = Server("127.0.0.1", 0)
    try:
        newcomer = connect("127.0.0.1", hub.port, 5)
        newcomer.send(StatusQuery())
        assert isinstance(hub.next(10), Received)
        assert caplog.text.count("too many open files") == 2
        newcomer.close()
    finally:
        hub.close()
    hub._thread.join(5)
    assert not hub._thread.is_alive()
