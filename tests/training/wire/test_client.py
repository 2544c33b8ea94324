"""A worker's line: what it says while nobody is there, and hears at the end."""

import socket
import threading
from typing import Any

import pytest
from helpers.servers.processes import free_port
from helpers.worlds.communicators import eventually

from pcp.errors import PeerLost
from pcp.training.wire import client
from pcp.training.wire.channel import Channel
from pcp.training.wire.client import ShepherdLink, Timing
from pcp.training.wire.message import VERSION
from pcp.training.wire.messages import (
    Commit,
    Heartbeat,
    Hello,
    Shutdown,
    Welcome,
)

HELLO = Hello(
    version=VERSION,
    worker="w",
    target="cpu",
    backend="cpu",
    device="local-sync",
    address="127.0.0.1:1",
)
WELCOME = Welcome(
    worker="w",
    index=0,
    run="r",
    experiment={},
    heartbeat_seconds=60.0,
    bundle="a" * 64,
    bundle_bytes=0,
    data="a" * 64,
    committed=0,
    digest=None,
)


def introduce() -> Hello:
    raise AssertionError("nobody is there")


def _link(shepherds: list[tuple[str, int]], **given: Any) -> ShepherdLink:
    """A link that hears and says nothing, but for what is given."""
    usual = {
        "introduce": introduce,
        "expected": lambda _: None,
        "welcomed": lambda *_: None,
        "received": lambda _: None,
        "failed": lambda _: None,
        "log": lambda _: None,
    }
    return ShepherdLink(shepherds, **usual | given)


def test_nobody_there_is_said_once_and_tried_again():
    said, gone, errors = [], threading.Event(), []

    def failed(error):
        errors.append(error)
        gone.set()

    port = free_port()
    link = _link(
        [("127.0.0.1", port)],
        failed=failed,
        log=said.append,
        timing=Timing(patience=0.5),
    )
    link.start()
    try:
        assert gone.wait(30)
    finally:
        link.close()
    (line,) = said
    assert line.startswith(f"no shepherd at 127.0.0.1:{port}: ")
    assert line.endswith("; trying again, for 0.5 s")
    assert isinstance(errors[0], PeerLost)


def test_a_process_that_can_make_no_heartbeat_is_told_of():
    """What hangs has what a heartbeat needs: nobody else in the process can say so."""
    told, never = [], threading.Event()

    def beat() -> Heartbeat:
        never.wait()
        return Heartbeat()

    link = _link(
        [("127.0.0.1", free_port())],
        timing=Timing(heartbeat=0.01, still=0.6),
        beat=beat,
        stalled=told.append,
    )
    link.start()
    try:
        eventually(lambda: told, 10)
    finally:
        never.set()
        link.close()
    (reason,) = told
    assert reason.startswith("no heartbeat can be made for ")


@pytest.mark.parametrize(
    ("holds", "said"),
    [("heartbeats", "no heartbeat can be made"), ("nothing", "the run is over, and")],
)
def test_a_process_that_hangs_when_the_run_ends_is_told_of(monkeypatch, holds, said):
    """It was left, dialled again, and heard that nobody needs it: it has to end."""
    monkeypatch.setattr(client, "LAST_STEP_SECONDS", 0.6)
    told, never = [], threading.Event()

    def beat() -> Heartbeat:
        if holds == "heartbeats":
            never.wait()
        return Heartbeat()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = _link(
            [listener.getsockname()],
            introduce=lambda: HELLO,
            timing=Timing(heartbeat=0.01, still=0.1 if holds == "heartbeats" else 60.0),
            beat=beat,
            stalled=told.append,
        )
        link.start()
        try:
            shepherd = Channel(listener.accept()[0])
            assert isinstance(shepherd.receive(10), Hello)
            shepherd.send(WELCOME.model_copy(update={"heartbeat_seconds": 0.1}))
            shepherd.send(Shutdown(reason="the run is complete"))
            eventually(lambda: told, 10)
            shepherd.close()
        finally:
            never.set()
            link.close()
    (reason,) = told
    assert reason.startswith(said)


def test_what_was_said_last_is_heard_though_the_line_is_broken(monkeypatch):
    """The worker is busy, and its own message finds that the shepherd has gone."""
    heard, busy, free = [], threading.Event(), threading.Event()
    refused, send = threading.Event(), Channel.send

    def noting(self, message, timeout=5.0):
        try:
            send(self, message, timeout)
        except PeerLost:
            refused.set()
            raise

    monkeypatch.setattr(Channel, "send", noting)

    def received(message):
        heard.append(message.kind)
        busy.set()
        assert free.wait(30)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = _link(
            [listener.getsockname()],
            introduce=lambda: HELLO,
            received=received,
            timing=Timing(),
        )
        link.start()
        try:
            shepherd = Channel(listener.accept()[0])
            assert isinstance(shepherd.receive(10), Hello)
            shepherd.send(WELCOME)
            shepherd.send(Commit(round=1, epoch=1, digest="a" * 64))
            assert busy.wait(30)
            shepherd.send(Shutdown(reason="the run is complete"))
            shepherd.close()

            def broken() -> bool:
                link.send(Commit(round=1, epoch=1, digest="a" * 64))
                return refused.is_set()

            eventually(broken, 10)
            free.set()
            eventually(lambda: "shutdown" in heard, 10)
        finally:
            free.set()
            link.close()
