"""The shepherd's door under strangers that come in and say nothing."""

import socket
import time

import pytest
from helpers.models.bigram_numpy import bundle
from helpers.worlds.communicators import eventually
from helpers.worlds.training_runs import (
    Watcher,
    experiment,
    start_shepherd,
    start_worker,
)

from pcp.errors import CompileError, RuntimeFault
from pcp.runtime.transport import link
from pcp.training.coordinator.events import Lost, Tick
from pcp.training.shepherd import server as hubs
from pcp.training.shepherd.server import Connection, RateLimiter, Received, Server
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage.run_folder import RunFolder
from pcp.training.wire.channel import connect
from pcp.training.wire.messages import Shutdown
from pcp.training.wire.operator_messages import (
    StatusQuery,
)


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
    hub._thread.join(30)
    assert not hub._thread.is_alive()


def test_who_leaves_is_not_named_by_the_port_it_called_from() -> None:
    hub = Server("127.0.0.1", 0)
    gone = connect("127.0.0.1", hub.port, 5)
    try:
        gone.send(StatusQuery())
        assert isinstance(hub.next(10), Received)
        gone.close()
        lost = hub.next(10)
        assert isinstance(lost, Lost)
        assert lost.reason == "it closed the connection"
    finally:
        hub.close()


def test_who_said_a_word_and_is_no_worker_does_not_stay(monkeypatch) -> None:
    monkeypatch.setattr(hubs, "STRANGER_SECONDS", 0.3)
    hub = Server("127.0.0.1", 0)
    stranger = connect("127.0.0.1", hub.port, 5)
    try:
        stranger.send(StatusQuery())
        assert isinstance(hub.next(10), Received)
        assert isinstance(hub.next(10), Lost)
    finally:
        hub.close()
        stranger.close()


def test_strangers_that_said_a_word_keep_nobody_out(monkeypatch) -> None:
    monkeypatch.setattr(hubs, "MAX_STRANGERS", 8)
    hub, strangers = Server("127.0.0.1", 0), []
    try:
        for _ in range(20):
            strangers.append(connect("127.0.0.1", hub.port, 5))
            strangers[-1].send(StatusQuery())
            while not isinstance(hub.next(10), Received):
                pass
        hub._has_room()
        alive = [c for c in hub._connections if not c._over.is_set()]
        assert len(alive) <= 8
    finally:
        hub.close()
        for stranger in strangers:
            stranger.close()


def test_the_last_word_is_read_by_a_peer_whose_own_words_were_not() -> None:
    """It has much to read before: what is on its way must not be taken back."""
    hub = Server("127.0.0.1", 0)
    peer, blob = connect("127.0.0.1", hub.port, 5), bytes(1 << 20)
    try:
        for _ in range(2 * hubs.MAX_UNHANDLED):
            peer.send(StatusQuery())
        event = hub.next(10)
        assert isinstance(event, Received)
        assert isinstance(event.connection, Connection)
        event.connection.send(blob, Shutdown(reason="the run is complete"))
        event.connection.close()
        time.sleep(0.3)  # by then it is closed, or about to be
        assert peer.receive_blob(len(blob), 10) == blob
        assert isinstance(peer.receive(10), Shutdown)
    finally:
        hub.close()
        peer.close()


def test_a_flood_stays_in_its_own_socket(monkeypatch) -> None:
    """The loop takes what it can; no queue grows meanwhile."""
    monkeypatch.setattr(hubs, "MAX_RATE", 1e9)
    hub = Server("127.0.0.1", 0)
    flood = connect("127.0.0.1", hub.port, 5)
    try:
        for _ in range(20 * hubs.MAX_UNHANDLED):
            flood.send(StatusQuery())
        eventually(lambda: hub._connections, 10)
        (connection,) = hub._connections
        eventually(lambda: not connection._unhandled._value, 10)
        assert hub.events.qsize() == hubs.MAX_UNHANDLED
        for _ in range(20 * hubs.MAX_UNHANDLED):
            assert isinstance(hub.next(10), Received)
    finally:
        hub.close()
        flood.close()


def test_a_connection_sends_so_many_messages_a_second() -> None:
    pace = RateLimiter(100.0)
    began = pace._at
    assert sum(pace.pause(began) for _ in range(100)) == 0.0
    assert pace.pause(began) > 0.0
    assert pace.pause(began + 2.0) == 0.0


def test_the_clock_goes_on_under_a_flood(tmp_path, monkeypatch) -> None:
    exp = experiment(tmp_path)
    folder = RunFolder.at(tmp_path / "run", exp)
    shepherd = Shepherd(exp, folder, lambda _: b"", Watcher())
    try:
        heard: list[object] = []
        monkeypatch.setattr(shepherd.hub, "next", lambda timeout: object())
        monkeypatch.setattr(shepherd, "_handle", heard.append)
        ticks: list[object] = []
        monkeypatch.setattr(shepherd, "_happened", ticks.append)
        for _ in range(3):
            shepherd.turn()
        assert [type(event) for event in ticks] == [Tick] * 3
        assert len(heard) > 3
    finally:
        shepherd.close()


def test_a_target_that_is_none_costs_its_worker_alone(tmp_path) -> None:
    """The first that comes, or a stranger, must not end the run."""

    def compile_for(target: str) -> bytes:
        if target != "cpu":
            raise CompileError(f"no target is called {target}")
        return bundle()

    exp = experiment(tmp_path, outer_loop_steps=2)
    shepherd, watcher, thread = start_shepherd(exp, workers=1, compile_for=compile_for)
    stray = start_worker(shepherd.port, "typo", target="cdua")
    with pytest.raises(RuntimeFault, match="no target is called cdua"):
        stray.finish()
    good = start_worker(shepherd.port, "good")
    assert thread.finish().rounds == 2
    assert good.finish(10) == "the run is complete"
    assert any("no bundle for cdua" in line for line in watcher.lines)


def test_a_model_that_no_target_takes_ends_the_run(tmp_path) -> None:
    def compile_for(target: str) -> bytes:
        raise CompileError("the model has an op that is none")

    exp = experiment(tmp_path)
    shepherd, _, thread = start_shepherd(exp, workers=1, compile_for=compile_for)
    start_worker(shepherd.port, "good")
    with pytest.raises(CompileError, match="an op that is none"):
        thread.finish()
