"""Snapshots: state streamed outside a group, checked and bounded."""

import socket
import threading
import time
from datetime import timedelta

import ml_dtypes
import numpy as np
import pytest
from helpers.worlds.communicators import (
    endpoints,
    eventually,
    form,
    outcome,
    together,
)

from pcp.errors import PeerLost, ProtocolError, Timeout, UsageError
from pcp.runtime.group import state_transfer
from pcp.runtime.group.state_transfer import fetch_snapshot
from pcp.runtime.transport.blocking_io import BlockingConnection
from pcp.runtime.transport.frame import Frame, Kind, json_payload, pack_header

STATE = {
    "w": np.random.default_rng(0).normal(size=(700, 900)),
    "half": np.arange(7).astype(np.float16),
    "brain": np.arange(9).astype(ml_dtypes.bfloat16),
    "scalar": np.array(3.5, np.float32),
    "empty": np.zeros((0, 4), np.int32),
    "flags": np.array([True, False]),
}


def test_what_is_served_arrives_to_the_bit_while_the_owner_works():
    with endpoints(3) as made:
        comms = form(made[:2])
        made[0].serve_snapshot(lambda: (41, STATE))
        busy = [c.all_reduce_async(np.ones(300_000)) for c in comms]
        copies = together(range(4), lambda _: fetch_snapshot(made[0].address, 20))
        assert all((p.result(30) == 2).all() for p in busy)
        for revision, arrays in copies:
            assert revision == 41
            assert list(arrays) == list(STATE)
            for name, array in arrays.items():
                assert array.dtype == STATE[name].dtype
                assert array.shape == STATE[name].shape
                assert array.tobytes() == STATE[name].tobytes()


def test_an_owner_without_a_snapshot_says_so():
    with endpoints(2) as made:
        with pytest.raises(ProtocolError, match="nothing here serves 'snapshot'"):
            fetch_snapshot(made[0].address, 5)

        def broken():
            raise ValueError("not ready")

        made[1].serve_snapshot(broken)
        with pytest.raises(ProtocolError, match="not ready"):
            fetch_snapshot(made[1].address, 5)


def test_more_than_the_bound_is_refused_before_memory_is_taken():
    with endpoints(1) as made:
        made[0].serve_snapshot(lambda: (1, STATE))
        with pytest.raises(ProtocolError, match="1000 allowed"):
            fetch_snapshot(made[0].address, 5, max_bytes=1000)


def test_an_index_that_no_frame_carries_is_refused():
    names = [letter * (1 << 20) for letter in "abcde"]
    with endpoints(1) as (owner,):
        owner.serve_snapshot(lambda: (1, dict.fromkeys(names, np.ones(3))))
        with pytest.raises(ProtocolError, match=r"5 arrays .* with only="):
            fetch_snapshot(owner.address, 10)
        assert len(fetch_snapshot(owner.address, 10, only=["a", "c"])[1]) == 2


def test_nobody_there():
    with endpoints(1) as made:
        address = made[0].address
    with pytest.raises(PeerLost, match="refused"):
        fetch_snapshot(address, 5)


def entry(**changes):
    return {"name": "w", "dtype": "float32", "shape": [4], **changes}


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        ([Frame(Kind.WELCOME, payload=b"{}")], "makes no sense"),
        (
            [Frame(Kind.WELCOME, payload=json_payload({"revision": 1, "tensors": 3}))],
            "makes no sense",
        ),
        ([entry(shape=[-1])], "negative"),
        ([entry(shape=[1 << 50])], "allowed"),
        ([entry(dtype="float99")], "makes no sense"),
        ([entry(dtype="object")], "makes no sense"),
        ([entry(), Frame(Kind.DATA, offset=4, payload=b"1234")], "out of order"),
        ([entry(), Frame(Kind.DATA, payload=bytes(20))], "more of w"),
        (
            [entry(), Frame(Kind.DATA, payload=bytes(16)), Frame(Kind.PING)],
            "did not end",
        ),
        ([entry(), Frame(Kind.DATA, payload=bytes(16), checksum=7)], "damaged"),
        ([entry(), Frame(Kind.DATA, payload=bytes(8))], "closed the connection"),
    ],
)
def test_a_lying_owner_is_caught(frames, message):
    listener = socket.create_server(("127.0.0.1", 0))

    def lie():
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            for frame in frames:
                if isinstance(frame, dict):
                    index = {"revision": 1, "tensors": [frame]}
                    frame = Frame(Kind.WELCOME, payload=json_payload(index))
                BlockingConnection(sock, "reader").send(frame)
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(5)
            sock.recv(1)

    thread = threading.Thread(target=lambda: outcome(lie))
    thread.start()
    port = listener.getsockname()[1]
    try:
        with pytest.raises((ProtocolError, PeerLost), match=message):
            fetch_snapshot(f"127.0.0.1:{port}", 5, max_bytes=1 << 30)
    finally:
        thread.join(30)
        listener.close()


@pytest.mark.parametrize(
    "patience",
    [{"timeout": 0.3}, {"silence": 0.3}, {"silence": timedelta(seconds=0.3)}],
)
def test_an_owner_that_stops_talking_is_a_timeout(patience):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(Timeout):
            fetch_snapshot(f"127.0.0.1:{port}", **patience)


def test_no_silence_at_all_is_not_to_be_had():
    with pytest.raises(UsageError, match="above 0"):
        fetch_snapshot("127.0.0.1:1", silence=0)


def written() -> bytes:
    """A snapshot of one small array, as its reader gets it."""
    index = json_payload({"revision": 1, "tensors": [entry()]})
    frames = [
        Frame(Kind.WELCOME, payload=index),
        Frame(Kind.DATA, payload=bytes(16)),
        Frame(Kind.DONE),
    ]
    return b"".join(pack_header(f, 0) + bytes(f.payload) for f in frames)


@pytest.mark.parametrize("stops", [None, 0.1, 0.5, 0.95])
def test_an_owner_may_be_slow_and_not_silent(stops):
    """Each piece comes within the bound, each part of it and all take longer."""
    listener, gone = socket.create_server(("127.0.0.1", 0)), threading.Event()
    whole = written()
    end = len(whole) if stops is None else int(stops * len(whole))

    def drip():
        sock, _ = listener.accept()
        with sock:
            sock.recv(4096)
            for at in range(0, end, 14):
                sock.sendall(whole[at : min(at + 14, end)])
                time.sleep(0.1)
            gone.wait(20)

    thread = threading.Thread(target=lambda: outcome(drip))
    thread.start()
    where = f"127.0.0.1:{listener.getsockname()[1]}"
    try:
        if stops is None:
            assert fetch_snapshot(where, silence=0.5)[0] == 1
        else:
            with pytest.raises(Timeout):
                fetch_snapshot(where, silence=0.5)
    finally:
        gone.set()
        thread.join(30)
        listener.close()


def test_an_owner_whose_provider_takes_long_is_not_silent(monkeypatch):
    monkeypatch.setattr(state_transfer, "_PING_SECONDS", 0.05)
    done = threading.Event()

    def slow():
        done.wait(1.0)
        return 7, STATE

    with endpoints(1) as made:
        made[0].serve_snapshot(slow)
        revision, arrays = fetch_snapshot(made[0].address, 20, silence=0.4)
    assert revision == 7
    assert set(arrays) == set(STATE)


def test_readers_that_read_nothing_keep_nobody_out(monkeypatch):
    """As many as there are places, of a state larger than their sockets hold."""
    monkeypatch.setattr(state_transfer, "_MAX_READERS", 2)
    monkeypatch.setattr(state_transfer, "_SETTLED_SECONDS", 0.2)
    large = {"w": np.zeros(8 << 20)}
    with endpoints(1) as made:
        made[0].serve_snapshot(lambda: (7, large))
        idle = []
        hello = json_payload({"purpose": "snapshot"})
        for _ in range(2):
            host, port = made[0].address.rsplit(":", 1)
            idle.append(socket.create_connection((host, int(port)), timeout=30))
            frame = Frame(Kind.HELLO, payload=hello)
            idle[-1].sendall(pack_header(frame, 0) + hello)
            assert idle[-1].recv(1), "it has a place"
        got: list[int] = []

        def fetched() -> bool:
            try:
                got.append(fetch_snapshot(made[0].address, 20)[0])
            except ProtocolError:  # they have only just begun
                return False
            return True

        eventually(fetched, 20)
        assert got == [7]
        for stranger in idle:
            stranger.close()
