"""Endpoints: groups come and go, strangers are refused, faults are named."""

import os
import socket
import struct
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from helpers.worlds.communicators import endpoints, eventually, form, outcome, together
from helpers.worlds.training_runs import Background

from pcp.errors import (
    CollectiveAborted,
    ConfigError,
    PeerLost,
    ProtocolError,
    RuntimeFault,
    Timeout,
)
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.group import mesh_formation
from pcp.runtime.group.mesh_formation import MeshFormation
from pcp.runtime.group.state_transfer import fetch_snapshot
from pcp.runtime.transport.address import parse_address
from pcp.runtime.transport.frame import (
    HEADER_BYTES,
    Frame,
    Kind,
    json_payload,
    pack_header,
)
from pcp.runtime.transport.tcp import TcpLink


def dial(endpoint):
    sock = socket.create_connection(parse_address(endpoint.address), timeout=30)
    sock.settimeout(8)
    return sock


def answer(sock) -> bytes:
    """Everything the endpoint says until it closes."""
    said = b""
    while piece := sock.recv(4096):
        said += piece
    return said


def hello(**values) -> bytes:
    frame = Frame(Kind.HELLO, payload=json_payload(values))
    return pack_header(frame, 0) + bytes(frame.payload)


STRANGERS = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 4, b"not a pcp frame"),
    "random": (os.urandom(4096), b"not a pcp frame"),
    "zeros": (bytes(4096), b"not a pcp frame"),
    "version": (pack_header(Frame(Kind.HELLO), 0, version=9), b"protocol version 9"),
    "wrong kind": (pack_header(Frame(Kind.PING), 0), b"PING instead of a greeting"),
    "huge": (
        pack_header(Frame(Kind.HELLO, payload=bytes(1 << 20)), 0),
        b"instead of a greeting",
    ),
    "epoch on a greeting": (pack_header(Frame(Kind.HELLO), 5), b"epoch 5"),
    "purpose": (hello(purpose="dance"), b"nothing here serves 'dance'"),
    "no epoch": (hello(purpose="group", rank=1), b"without an epoch"),
    "not json": (
        pack_header(Frame(Kind.HELLO, payload=b"{{{{"), 0) + b"{{{{",
        b"not JSON",
    ),
    "damaged": (hello(purpose="group")[:-1] + b"?", b"damaged"),
}


@pytest.fixture(scope="module")
def busy():
    """Two endpoints with a group that must survive everything below."""
    with endpoints(2) as pair:
        yield pair, form(pair)


@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_are_told_why_and_the_group_lives_on(busy, name):
    pair, comms = busy
    sent, wanted = STRANGERS[name]
    with dial(pair[0]) as sock:
        sock.sendall(sent)
        assert wanted in answer(sock)
    values = together(comms, lambda c: c.all_reduce(np.ones(20_000)))
    assert all((v == 2).all() for v in values)


def test_half_a_greeting_and_silence_do_no_harm(busy, monkeypatch):
    monkeypatch.setattr("pcp.runtime.group.group_endpoint.HANDSHAKE_SECONDS", 0.5)
    pair, comms = busy
    whole = hello(purpose="group", epoch=3, rank=1, members="")
    for cut in (1, HEADER_BYTES - 1, HEADER_BYTES, len(whole) - 1):
        with dial(pair[1]) as sock:
            sock.sendall(whole[:cut])
    with dial(pair[1]) as sock:
        assert together(comms, lambda c: c.all_reduce(np.ones(3)).sum()) == [6, 6]
        assert b"no greeting within" in answer(sock)


def test_epochs_follow_one_another_and_survivors_carry_on():
    with endpoints(3) as made:
        first = form(made, epoch=1)
        assert [c.epoch for c in first] == [1, 1, 1]
        second = form(made[:2], epoch=2)
        with pytest.raises(CollectiveAborted, match="epoch"):
            first[0].barrier()
        assert together(second, lambda c: c.all_reduce(np.ones(2)).tolist()) == (
            [[2, 2]] * 2
        )
        third = form(made, epoch=7)
        assert together(third, lambda c: c.all_reduce(np.ones(1))[0]) == [3, 3, 3]


def test_an_early_dialler_is_kept_until_its_epoch_comes():
    with endpoints(2) as made:
        addresses = [e.address for e in made]
        early = threading.Thread(target=lambda: results.append(run(1)))
        results: list = []

        def run(rank):
            with made[rank].form(4, addresses, rank, 10) as comm:
                return comm.all_reduce(np.ones(2)).tolist()

        early.start()
        eventually(lambda: bool(made[0]._ahead))
        assert run(0) == [2, 2]
        early.join(30)
        assert results == [[2, 2]]


def test_an_old_epoch_is_refused_and_a_newer_one_replaces_a_wait():
    with endpoints(2) as made:
        addresses = [e.address for e in made]
        with pytest.raises(Timeout, match="rank 1 did not connect"):
            made[0].form(5, addresses, 0, 0.3)
        late = outcome(lambda: made[1].form(4, addresses, 1, 5))
        assert isinstance(late, CollectiveAborted)
        assert "epoch 4 is over" in str(late)
        with pytest.raises(ConfigError, match="not newer"):
            made[0].form(5, addresses, 0, 1)
        waiting: list = []
        thread = threading.Thread(
            target=lambda: waiting.append(
                outcome(lambda: made[0].form(6, addresses, 0, 30))
            )
        )
        thread.start()
        eventually(lambda: ("", 6) in made[0]._formations)
        members = form(made, epoch=7)
        thread.join(30)
        assert isinstance(waiting[0], CollectiveAborted)
        assert [m.epoch for m in members] == [7, 7]


def test_an_epoch_is_of_its_scope():
    """A newer epoch outside neither ends an island's group nor refuses its members."""
    with endpoints(3) as made:
        addresses = [e.address for e in made]
        inner = form(made[:2], epoch=3, scope="island")
        outer = form([made[0], made[2]], epoch=3)
        newer = form([made[0], made[2]], epoch=9)
        assert outcome(lambda: outer[0].barrier(timeout=1)) is not None
        sums = together(inner, lambda comm: comm.all_reduce(np.ones(1)).tolist())
        assert sums == [[2], [2]]
        made[0].cancel("outside", below=20)
        assert outcome(lambda: made[0].form(12, addresses, 0, 1)) is not None
        again = form(made[:2], epoch=4, scope="island")
        assert outcome(lambda: inner[0].barrier(timeout=1)) is not None
        sums = together(again, lambda comm: comm.all_reduce(np.ones(1)).tolist())
        assert sums == [[2], [2]]
        assert [comm.epoch for comm in newer] == [9, 9]


def test_cancel_ends_a_wait():
    with endpoints(2) as made:
        addresses = [e.address for e in made]
        threading.Timer(0.2, made[0].cancel, ["shutting down"]).start()
        with pytest.raises(CollectiveAborted, match="shutting down"):
            made[0].form(1, addresses, 0, 30)


def test_other_members_under_the_same_epoch_are_refused():
    with endpoints(3) as made:
        a, b, c = (e.address for e in made)
        lists = {0: [a, b], 1: [a, b, c][:2][::1], 2: None}
        lists[1] = [a, c]
        results = together(
            [0, 2],
            lambda r: outcome(
                lambda: made[r].form(1, [a, b] if r == 0 else [a, c], min(r, 1), 1.0)
            ),
        )
        assert isinstance(results[1], ProtocolError)
        assert "other members" in str(results[1])
        assert isinstance(results[0], Timeout | PeerLost)


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_forming_with_a_dead_member_fails_soon_and_names_it(dead):
    with endpoints(3) as made:
        addresses = [e.address for e in made]
        made[dead].close()
        alive = [r for r in range(3) if r != dead]
        results = together(
            alive, lambda r: outcome(lambda: made[r].form(1, addresses, r, 20))
        )
        assert any(isinstance(r, PeerLost) and r.peer == dead for r in results)
        assert all(isinstance(r, PeerLost) for r in results)


def test_whom_a_member_waits_for_is_known_from_outside_its_call():
    """While a group is formed, in an operation of it, and when that gives up."""
    with endpoints(3) as made:
        addresses = [e.address for e in made]
        forms = [
            Background(lambda r=r: made[r].form(1, addresses, r, 30)) for r in (0, 1)
        ]
        for rank in (0, 1):
            eventually(lambda rank=rank: lacks(made[rank]) == (2,))
        first, later = (made[0].awaited() or {} for _ in range(2))
        assert 0 < first[""].seconds < later[""].seconds
        assert made[2].awaited() == {}, "it is in no call"
        comms = [made[2].form(1, addresses, 2, 30), *(b.finish() for b in forms)]
        assert [e.awaited() for e in made] == [{}, {}, {}]
        late, *calls = sorted(comms, key=lambda c: (c.rank != 1, c.rank))
        pending = [c.all_reduce_async(np.ones(4), timeout=1.0) for c in calls]
        for rank in (0, 2):
            eventually(lambda rank=rank: lacks(made[rank]) == (1,))
        assert made[1].awaited() == {}
        with pytest.raises((Timeout, CollectiveAborted)) as told:
            [future.result() for future in pending]
        if isinstance(told.value, Timeout):
            assert told.value.peers == (1,)
        late.close()
    assert made[0].awaited() is None, "it is closed"


def lacks(endpoint: Endpoint) -> tuple[int, ...]:
    """The ranks that its newest group lacks."""
    said = (endpoint.awaited() or {}).get("")
    return said.ranks if said else ()


def test_a_thread_that_hangs_in_a_formation_waits_for_nobody(monkeypatch):
    """Though others connect to its endpoint, which goes on."""
    released = threading.Event()

    def hangs(self, peer, deadline):
        released.wait(20)

    monkeypatch.setattr(MeshFormation, "_dial", hangs)
    monkeypatch.setattr(mesh_formation, "_LATE_SECONDS", 1.0)
    with endpoints(2) as made:
        addresses = [e.address for e in made]
        forms = [
            Background(lambda r=r: outcome(lambda: made[r].form(1, addresses, r, 4)))
            for r in (0, 1)
        ]
        eventually(lambda: lacks(made[0]) == (1,))
        eventually(lambda: made[1].awaited() == {})
        assert lacks(made[0]) == (1,)
        released.set()
        assert all(isinstance(form.finish(), RuntimeFault) for form in forms)


def test_a_formation_that_is_given_up_says_who_did_not_come():
    with endpoints(2) as made:
        with pytest.raises(Timeout) as told:
            made[0].form(1, [e.address for e in made], 0, 0.3)
        assert told.value.peers == (1,)


@contextmanager
def another_program(says: bytes):
    """Where something listens that is not pcp's: it says this and hangs up."""

    def serve():
        for _ in range(2):
            sock, _ = listener.accept()
            with sock:
                sock.sendall(says)
                sock.shutdown(socket.SHUT_WR)
                sock.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lambda: outcome(serve), daemon=True)
        thread.start()
        yield "{}:{}".format(*listener.getsockname())
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(30)


@pytest.mark.parametrize(
    ("says", "kind"), [(b"", PeerLost), (b"220 welcome\r\n" * 9, ProtocolError)]
)
@pytest.mark.parametrize("call", ["form", "connect", "snapshot", "key"])
def test_a_port_of_another_program_is_recognised(call, says, kind):
    calls = {
        "form": lambda at: made[0].form(1, [at, made[0].address], 1, 5),
        "connect": lambda at: Communicator.connect(at, rank=1, world_size=2, timeout=5),
        "snapshot": lambda at: fetch_snapshot(at, 5),
        "key": lambda at: fetch_snapshot(at, 5, key="a key of many letters"),
    }
    with endpoints(1) as made, another_program(says) as place:
        with pytest.raises(kind, match="another program") as caught:
            calls[call](place)
        if call == "form":
            assert f"rank 0 at {place}" in str(caught.value) or caught.value.peer == 0


def test_a_silent_peer_is_lost():
    """Its kernel answers, it does not: nothing but heartbeats can tell."""
    with endpoints(2, heartbeat=0.1, silence=0.6) as made:
        comms = form(made)
        stop = threading.Event()
        made[1].loop.call(stop.wait, 4)
        with pytest.raises(PeerLost, match="silent for"):
            comms[0].all_reduce(np.ones(4), timeout=20)
        stop.set()


def test_ports_and_addresses_that_cannot_be():
    with Endpoint.listen("127.0.0.1:0") as taken:
        with pytest.raises(ConfigError, match="cannot listen"):
            Endpoint.listen(taken.address)
    for bad in ("localhost", "127.0.0.1:", ":80", "::1:80", "h:99999", "h:x"):
        with pytest.raises(ConfigError):
            Endpoint.listen(bad)
        with pytest.raises(ConfigError):
            Endpoint.listen("127.0.0.1:0", advertise=bad)
    with pytest.raises(ConfigError, match="advertise"):
        Endpoint.listen("0.0.0.0:0")


@pytest.mark.parametrize(
    ("epoch", "peer"), [(0, "127.0.0.1:9"), (2, "127.0.0.1:9"), (2, "no address")]
)
def test_a_group_that_was_not_formed_leaves_nothing_behind(epoch, peer):
    with endpoints(1) as (endpoint,):
        endpoint.form(1, [endpoint.address], 0)
        # A newer epoch ends the one before.
        sources = len(endpoint.telemetry.sources) - bool(epoch)
        fault = outcome(lambda: endpoint.form(epoch, [peer, endpoint.address], 1, 5))
        assert isinstance(fault, ConfigError | PeerLost)
        eventually(lambda: len(endpoint.telemetry.sources) == sources)


def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    made = [Endpoint.listen("[::1]:0") for _ in range(2)]
    try:
        comms = form(made)
        assert together(comms, lambda c: c.all_reduce(np.ones(1))[0]) == [2, 2]
    finally:
        for endpoint in made:
            endpoint.close()


def test_a_group_frame_of_another_epoch_ends_that_connection():
    """A peer that goes on in an old epoch must not reach a new operation."""
    with endpoints(2) as made:
        comms = form(made, epoch=3)
        link = comms[1]._group.links[0]

        def disguise():
            link.epoch = 2

        made[1].loop.ask(disguise)
        results = together(
            comms, lambda c: outcome(lambda: c.all_reduce(np.ones(4), timeout=5))
        )
        assert all(isinstance(r, PeerLost) for r in results)
        assert "epoch 2" in str(results[0])


def test_silent_strangers_keep_nobody_out(monkeypatch):
    """More than may wait hold their connections, and are not told to leave."""
    monkeypatch.setattr("pcp.runtime.group.group_endpoint.HANDSHAKE_SECONDS", 60.0)
    with endpoints(2) as made:
        host, port = parse_address(made[0].address)
        strangers = [socket.create_connection((host, port)) for _ in range(300)]
        try:
            comms = form(made, timeout=30)
            assert together(comms, lambda c: c.all_reduce(np.ones(1))[0]) == [2, 2]
        finally:
            for stranger in strangers:
                stranger.close()


def test_closing_leaves_no_thread_and_no_socket():
    before = threading.active_count()
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with endpoints(3) as made:
            together(form(made), lambda c: c.barrier())
    eventually(lambda: threading.active_count() <= before)
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= files)


def test_truncated_frame_in_a_group_is_a_lost_peer():
    with endpoints(2, shared_memory=False) as made:
        comms = form(made)
        link = comms[1]._group.links[0]
        assert isinstance(link, TcpLink)
        sock = link._sock
        assert isinstance(sock, socket.socket)

        def cut():
            raw = pack_header(Frame(Kind.OPEN, payload=bytes(100)), 1)
            sock.setblocking(True)
            sock.sendall(raw + bytes(10))
            sock.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            link.sever()

        made[1].loop.ask(cut)
        with pytest.raises(PeerLost) as caught:
            comms[0].barrier(timeout=5)
        assert caught.value.peer == 1
