"""TLS: whose certificate is good gets in, and what is said stays between them."""

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from helpers.faults.faulty_wire import FaultyWire
from helpers.worlds.certificates import authority, member_tls
from helpers.worlds.communicators import endpoints, eventually, form, outcome, together

from pcp.errors import ConfigError, PeerLost, ProtocolError
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.group.coordinator import Coordinator
from pcp.runtime.group.rendezvous import Rendezvous
from pcp.runtime.group.state_transfer import fetch_snapshot
from pcp.runtime.transport import authentication
from pcp.runtime.transport.address import format_address, parse_address
from pcp.runtime.transport.link import accept, dial, listen
from pcp.runtime.transport.shared_memory import SharedLink
from pcp.runtime.transport.striped import StripedLink
from pcp.runtime.transport.tls import Tls, TlsSocket

COUNT = 1_500_000
CARRIERS: dict[str, dict[str, Any]] = {
    "tls": {"shared_memory": False},
    "memory": {},
    "striped": {"streams": 3},
    "key": {"shared_memory": False, "key": "correct horse battery"},
}


def socks(comm: Communicator) -> list[Any]:
    """The sockets below a communicator's links."""
    found = []
    for link in comm._group.links.values():
        streams = link._all if isinstance(link, StripedLink) else [link]
        found += [
            stream._tcp if isinstance(stream, SharedLink) else stream
            for stream in streams
        ]
    return [stream._sock for stream in found]


@pytest.mark.parametrize("carrier", CARRIERS)
def test_groups_work_as_without(carrier: str) -> None:
    with endpoints(3, tls=member_tls(), **CARRIERS[carrier]) as made:
        comms = form(made)
        assert all(isinstance(s, TlsSocket) for comm in comms for s in socks(comm))
        for count in (3, COUNT):
            sums = together(
                comms, lambda c, n=count: c.all_reduce(np.full(n, c.rank + 1.0, "f"))
            )
            assert [(s.min(), s.max()) for s in sums] == [(6, 6)] * 3
        # Newer groups of the same endpoints, too.
        again = form(made, epoch=2)
        assert together(again, lambda c: c.all_reduce(np.ones(1))[0]) == [3] * 3


def test_fixed_and_elastic_worlds_groups_and_snapshots() -> None:
    tls = member_tls()
    meeting = Rendezvous.listen("127.0.0.1:0", tls=tls)
    places = [meeting, meeting.address]
    comms = together(
        [0, 1],
        lambda r: Communicator.connect(places[r], rank=r, world_size=2, tls=tls),
    )
    parts = together(comms, lambda c: c.group([1, 0], tls=tls))
    assert together(parts, lambda c: c.all_reduce(np.ones(1))[0]) == [2, 2]
    for comm in [*parts, *comms]:
        comm.close()
    with Coordinator.listen("127.0.0.1:0", first=2, tls=tls) as where:
        fault = outcome(lambda: Communicator.join(where.address, timeout=5))
        assert isinstance(fault, ProtocolError)
        assert "start all with the same --key-file" in str(fault)
        comms = together(
            "ab",
            lambda n: Communicator.join(where.address, name=n, timeout=20, tls=tls),
        )
        assert together(comms, lambda c: c.all_reduce(np.ones(1))[0]) == [2, 2]
        for comm in comms:
            comm.close()
    with Endpoint.listen(tls=tls) as end:
        end.serve_snapshot(lambda: (7, {"w": np.arange(300_000)}))
        revision, arrays = fetch_snapshot(end.address, 10, tls=tls)
        assert (revision, int(arrays["w"][-1])) == (7, 299_999)
        with pytest.raises(ProtocolError, match="start all with the same --key-file"):
            fetch_snapshot(end.address, 5)


PLAIN = "no tls"
MISFITS: dict[str, tuple[Callable[[], Tls | None], Callable[[], Tls | None], str]] = {
    "another authority": (member_tls, lambda: member_tls("others"), "not good here"),
    "a certificate that ours did not sign": (
        member_tls,
        lambda: member_tls("others", trusts="group"),
        "refuses our certificate",
    ),
    "a listener that ours did not sign": (
        lambda: member_tls("others", trusts="group"),
        member_tls,
        "not good here",
    ),
    "an expired dialler": (
        member_tls,
        lambda: member_tls(expired=True),
        "refuses our certificate",
    ),
    "an expired listener": (
        lambda: member_tls(expired=True),
        member_tls,
        "expired",
    ),
    "none": (member_tls, lambda: None, "start all with the same --key-file"),
    "one too many": (lambda: None, member_tls, "does not encrypt"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_who_has_no_good_certificate_never_meets_the_others(misfit: str) -> None:
    ours, theirs, words = MISFITS[misfit]
    with Endpoint.listen(tls=ours()) as a, Endpoint.listen(tls=theirs()) as b:
        members = [a.address, b.address]
        outs = together(
            [(a, 0), (b, 1)],
            lambda it: outcome(lambda: it[0].form(1, members, it[1], 0.8)),
        )
        assert isinstance(outs[1], ProtocolError), outs
        assert words in str(outs[1])
        assert a.address in str(outs[1])
        assert isinstance(outs[0], Exception)
        if ours() is not None and ours() != member_tls():
            return
        # The listener lives on, for those who belong.
        with Endpoint.listen(tls=ours()) as c:
            comms = together(
                [(a, 0), (c, 1)],
                lambda it: it[0].form(2, [a.address, c.address], it[1], 10.0),
            )
            assert together(comms, lambda m: m.all_reduce(np.ones(1))[0]) == [2, 2]


@pytest.mark.parametrize("strange", ["no certificate", "TLS 1.2", "junk", "silence"])
def test_strangers_are_sent_away(strange: str, monkeypatch) -> None:
    monkeypatch.setattr("pcp.runtime.group.group_endpoint.HANDSHAKE_SECONDS", 0.3)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    authority("group").configure_trust(context)
    if strange == "TLS 1.2":
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    with Endpoint.listen(tls=member_tls()) as end:
        host, port = parse_address(end.address)
        with socket.create_connection((host, port), timeout=30) as sock:
            if strange == "junk":
                sock.sendall(os.urandom(100_000))
            if strange in ("junk", "silence"):
                with pytest.raises((ConnectionError, EOFError)):
                    _drain(sock)
            else:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    _drain(context.wrap_socket(sock))
        eventually(lambda: not end.loop.ask(lambda: end._waiting))


def _drain(sock: Any) -> None:
    with sock:
        while sock.recv(1 << 16):
            pass
        raise EOFError


class Tap(FaultyWire):
    """A wire that keeps what it passes on."""

    seen = b""

    def _pass_on(self, target: socket.socket, data: bytes) -> None:
        self.seen += data
        super()._pass_on(target, data)


def test_nothing_said_can_be_read_on_the_wire() -> None:
    tap, word = Tap(), b"weights of the first layer"
    with Endpoint.listen(tls=member_tls()) as end:
        end.serve_snapshot(lambda: (1, {"w": np.frombuffer(word * 99, np.uint8)}))
        with listen("127.0.0.1:0") as middle:
            address = format_address(*middle.getsockname()[:2])
            near: list[Any] = []

            def join_up() -> None:
                eventually(lambda: near.append(accept(middle)) or bool(near[-1]))
                far = dial(end.address, 5)
                sock, _ = near[-1]
                tap.between(sock, sock, (far, far))

            def fetch() -> Any:
                return fetch_snapshot(address, 10, tls=member_tls())

            (_, arrays), _ = together([fetch, join_up], lambda it: it())
    tap.close()
    assert arrays["w"].tobytes() == word * 99
    assert len(tap.seen) > len(word) * 99
    assert word not in tap.seen
    assert b"snapshot" not in tap.seen
    assert b"pcpR" not in tap.seen


def test_a_peer_that_hangs_up_in_the_handshake_is_lost_and_a_silent_one_late() -> None:
    with listen("127.0.0.1:0") as listener:
        address = format_address(*listener.getsockname()[:2])

        def hang_up() -> None:
            found: list[Any] = []
            eventually(lambda: found.append(accept(listener)) or bool(found[-1]))
            found[-1][0].close()

        def dial() -> Any:
            return outcome(lambda: authentication.dial(address, 5, None, member_tls()))

        fault, _ = together([dial, hang_up], lambda it: it())
        assert isinstance(fault, PeerLost)
        fault = outcome(lambda: authentication.dial(address, 0.3, None, member_tls()))
        assert "did not answer in time" in str(fault)


def test_a_socket_that_is_full_counts_bytes_once() -> None:
    """Encrypted and not taken: the same bytes are given again, and counted then."""
    left, right = socket.socketpair()
    with closing(left), closing(right):
        serving = member_tls().serve(right)
        serving.settimeout(10)
        room = memoryview(bytearray(1 << 16))

        def dial() -> Any:
            dialling = member_tls().dial(left, "it", 10)
            dialling.sendall(b"x")
            return dialling

        dialling, first = together(
            [dial, lambda: serving.recv_into(room[:1])], lambda it: it()
        )
        assert first == 1
        for end in (dialling, serving):
            end.setblocking(False)
        payload = np.random.default_rng(1).bytes(3 << 20)
        view, got, sent, full = memoryview(payload), b"", 0, 0
        for _ in range(10_000):
            with suppress(BlockingIOError):
                got += room[: serving.recv_into(room)]
            if got == payload:
                break
            try:
                sent += dialling.sendmsg([view[sent:]])
            except BlockingIOError:
                full += 1
        assert got == payload
        assert sent == len(payload)
        assert full > 3


def test_files_that_are_none_are_said(tmp_path) -> None:
    good, other = member_tls(), member_tls("others")
    absent = tmp_path / "absent.pem"
    junk = tmp_path / "junk.pem"
    junk.write_text("not a certificate")
    locked = tmp_path / "locked.key"
    plain = load_pem_private_key(Path(good.key).read_bytes(), None)
    secret = BestAvailableEncryption(b"secret")
    locked.write_bytes(plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    for cert, key, ca, words in (
        (absent, good.key, good.ca, "cert="),
        (good.cert, other.key, good.ca, "cert="),
        (good.cert, locked, good.ca, "unencrypted"),
        (good.cert, good.key, absent, "ca="),
        (good.cert, good.key, junk, "ca="),
    ):
        with pytest.raises(ConfigError, match=words):
            Endpoint.listen(tls=Tls(cert, key, ca))


def test_a_worker_without_tls_does_not_load_it() -> None:
    loaded = "import sys, pcp.runtime.communicator.communicator"
    script = f"{loaded}; assert 'ssl' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
