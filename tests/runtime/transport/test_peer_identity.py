"""Identities: who may speak to whom, and in which role."""

import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.worlds.identities import member

from pcp.errors import ConfigError, ProtocolError, RuntimeFault
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.group.state_transfer import fetch_snapshot
from pcp.runtime.transport import certificates
from pcp.runtime.transport.credentials import Protection
from pcp.runtime.transport.peer_identity import PeerIdentity, of_uri
from pcp.runtime.transport.tls import KeyTls, Tls


def served(listens: Tls | None, dials: Tls | None, **key) -> int:
    """What the dialler reads from who listens."""
    with Endpoint.listen(tls=listens, **key) as end:
        end.serve_snapshot(lambda: (7, {"w": np.arange(5)}))
        return fetch_snapshot(end.address, 5, tls=dials, **key)[0]


def test_a_uri_says_who_and_in_which_role() -> None:
    said = PeerIdentity("a run/of mine", "worker", "abc")
    assert of_uri(said.uri) == said
    for other in ("pcp://run/king/abc", "https://run/worker/abc", "pcp://run/worker"):
        assert of_uri(other) is None


def test_members_exchange_and_others_do_not(tmp_path) -> None:
    worker, _ = member(tmp_path, "worker")
    shepherd, _ = member(tmp_path, "shepherd")
    assert served(worker, shepherd) == served(shepherd, worker) == 7
    for role in ("reader", "operator"):
        other, _ = member(tmp_path, role)
        with pytest.raises(ProtocolError, match=f"refuses us.*role {role}"):
            served(worker, other)
        with pytest.raises(ProtocolError, match=f"the role {role}"):
            served(other, worker)


def test_another_namespace_or_no_identity_is_refused(tmp_path) -> None:
    worker, _ = member(tmp_path, "worker")
    stranger, _ = member(tmp_path, "worker", namespace="another")
    with pytest.raises(ProtocolError, match="certificate"):
        served(worker, stranger)
    # An authority signs for its own namespace alone, even where all trust it.
    both = tmp_path / "both.pem"
    cas = [Path(tls.ca).read_bytes() for tls in (worker, stranger)]
    both.write_bytes(b"".join(cas))
    trusting = Tls(worker.cert, worker.key, both)
    with pytest.raises(ProtocolError, match="not of the namespace 'run'"):
        served(trusting, Tls(stranger.cert, stranger.key, both))


def test_a_workers_certificate_is_no_shepherds(tmp_path) -> None:
    """What a worker dials to obey it must be a shepherd."""
    worker, _ = member(tmp_path, "worker")
    other, _ = member(tmp_path, "worker", name="other")
    shepherd, _ = member(tmp_path, "shepherd")
    for listens, word in ((other, "the role worker, not shepherd"), (shepherd, "")):
        with Endpoint.listen(tls=listens) as end:
            dial = Protection(tls=worker).dial
            if word:
                with pytest.raises(RuntimeFault, match=word):
                    dial(end.address, 5, roles=("shepherd",))
            else:
                dial(end.address, 5, roles=("shepherd",)).close()


def test_who_is_revoked_is_refused_from_then_on(tmp_path) -> None:
    worker, _ = member(tmp_path, "worker")
    lost, number = member(tmp_path, "worker", name="lost")
    assert served(worker, lost) == 7
    with open(tmp_path / "revoked", "a") as file:
        file.write(f"# stolen\n{number}\n")
    for listens, dials in ((worker, lost), (lost, worker)):
        with pytest.raises(ProtocolError, match="is revoked"):
            served(listens, dials)


def test_an_expired_certificate_is_none(tmp_path) -> None:
    worker, _ = member(tmp_path, "worker")
    old, _ = member(tmp_path, "worker", name="old", days=-0.0001)
    with pytest.raises(ProtocolError, match="expired"):
        served(worker, old)


def test_a_worker_signs_nobody(tmp_path) -> None:
    """Its key is no authority's, whatever it writes into a certificate."""
    worker, _ = member(tmp_path, "worker")
    Path(worker.key).with_suffix(".pem").read_bytes()
    forged = tmp_path / "forged.identity"
    certificates.new_identity(forged)
    made, _ = certificates.issue(Path(worker.key), forged, "shepherd", 1)
    forged.with_suffix(".pem").write_bytes(made + Path(worker.cert).read_bytes())
    with pytest.raises(ProtocolError, match="certificate"):
        served(worker, Tls(forged.with_suffix(".pem"), forged, worker.ca))


def test_an_identity_that_others_may_read_is_none(tmp_path) -> None:
    path = tmp_path / "me.identity"
    certificates.new_identity(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="File exists"):
        certificates.new_identity(path)
    os.chmod(path, 0o640)
    with pytest.raises(ConfigError, match="others may read this secret"):
        certificates.load_identity(path)


KEY = "correct horse battery staple and more"


def test_a_key_alone_makes_an_encrypted_channel() -> None:
    assert served(KeyTls(), KeyTls(), key=KEY) == 7
    with pytest.raises(ProtocolError, match="another key"):
        with Endpoint.listen(tls=KeyTls(), key=KEY) as end:
            fetch_snapshot(end.address, 5, tls=KeyTls(), key="another " + KEY)


class Relay:
    """Between a dialler and a listener: speaks TLS with both, has no key, reads all."""

    def __init__(self, target: str) -> None:
        self.heard = b""
        self._target = target
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._pass, daemon=True)]
        self._threads[0].start()

    def _pass(self) -> None:
        host, port = self._target.rsplit(":", 1)
        here = KeyTls().serve(self._door.accept()[0])
        there = socket.create_connection((host, int(port)), timeout=30)
        beyond = KeyTls().dial(there, self._target, 10)
        here.settimeout(10)
        for one, other in ((here, beyond), (beyond, here)):
            pump = threading.Thread(target=self._pump, args=(one, other), daemon=True)
            pump.start()
            self._threads.append(pump)

    def _pump(self, one, other) -> None:
        try:
            while content := one.recv(1 << 16):
                self.heard += content
                other.sendall(content)
        except (OSError, RuntimeFault):
            pass
        finally:
            other.close()

    def close(self) -> None:
        self._door.close()


def test_a_relay_that_lacks_the_key_cannot_speak() -> None:
    """It passes the proofs on, which are bound to another certificate than its own."""
    with Endpoint.listen(tls=KeyTls(), key=KEY) as end:
        end.serve_snapshot(lambda: (7, {"w": np.arange(5)}))
        relay = Relay(end.address)
        try:
            with pytest.raises(RuntimeFault, match="key"):
                fetch_snapshot(relay.address, 5, tls=KeyTls(), key=KEY)
        finally:
            relay.close()
        assert b"snapshot" not in relay.heard, "it heard a greeting"
