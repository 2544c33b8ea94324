"""What a shepherd's port meets: bytes that are no protocol, other versions."""

import socket

import pytest
from helpers.worlds.training_runs import (
    experiment,
    start_shepherd,
    start_worker,
)

from pcp.errors import ConfigError, ProtocolError
from pcp.training.wire import messages
from pcp.training.wire.channel import connect
from pcp.training.wire.message import VERSION, encode


def _hello(**changes) -> messages.Hello:
    base = {
        "version": VERSION,
        "worker": "x",
        "target": "cpu",
        "backend": "cpu",
        "device": "local-task",
        "address": "127.0.0.1:9",
    }
    return messages.Hello(**base | changes)


GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x00" * 4096,
    b"\xff" * 52,
    b"pcpR\x02\x05",
    b"",
]


def test_garbage_hurts_only_itself(tmp_path):
    exp = experiment(tmp_path, outer_loop_steps=20)
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    crew = [start_worker(shepherd.port, f"w{i}", 0.01) for i in range(2)]
    watcher.wait_for_round(1)
    ports = [shepherd.port, *(_port(m.address) for m in shepherd.roster)]
    ports.append(_port(shepherd.endpoint.address))
    for port in ports:
        for content in GARBAGE:
            with socket.create_connection(("127.0.0.1", port), 5) as sock:
                sock.sendall(content)
    raw = encode(_hello())
    for content in (raw[:-1], b"{}", b"[" * 100000, b'{"kind": "nonsense"}'):
        channel = connect("127.0.0.1", shepherd.port, 5)
        channel._send(1, 0, content, 5)
        assert isinstance(channel.receive(5), messages.Refused)
        channel.close()
    assert thread.finish().rounds == 20
    assert [w.finish(10) for w in crew]
    assert {r.workers for r in watcher.rounds} == {2}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_another_version_is_refused_with_a_reason(tmp_path):
    shepherd, _, thread = start_shepherd(experiment(tmp_path, outer_loop_steps=1))
    channel = connect("127.0.0.1", shepherd.port, 5)
    channel.send(_hello(version=99))
    answer = channel.receive(5)
    assert isinstance(answer, messages.Refused)
    expected = f"protocol version {VERSION}, the worker 99"
    assert expected in answer.reason
    channel.close()
    crew = [start_worker(shepherd.port, f"w{i}") for i in range(2)]
    thread.finish()
    assert [w.finish(10) for w in crew]


def test_a_worker_that_is_refused_says_why(tmp_path, monkeypatch):
    shepherd, _, thread = start_shepherd(experiment(tmp_path, outer_loop_steps=1))
    with monkeypatch.context() as patch:
        patch.setattr("pcp.training.worker.worker.VERSION", 99)
        worker = start_worker(shepherd.port, "new")
        with pytest.raises(ProtocolError, match="refused this worker"):
            worker.finish()
    crew = [start_worker(shepherd.port, f"w{i}") for i in range(2)]
    thread.finish()
    assert [w.finish(10) for w in crew]


def test_a_port_in_use_is_a_clear_error(tmp_path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            start_shepherd(experiment(tmp_path), port=port)
