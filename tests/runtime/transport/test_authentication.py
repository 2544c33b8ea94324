"""A shared key: who has it is let in, and nobody else."""

import os
import socket
import time

import numpy as np
import pytest
from helpers.worlds.communicators import endpoints, form, outcome, together

from pcp.errors import ConfigError, PeerLost, ProtocolError
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.group.coordinator import Coordinator
from pcp.runtime.group.rendezvous import Rendezvous
from pcp.runtime.group.state_transfer import fetch_snapshot
from pcp.runtime.transport import authentication
from pcp.runtime.transport.blocking_io import BlockingConnection, ReadLimits
from pcp.runtime.transport.frame import Frame, Kind, json_payload, text

KEY, OTHER = "correct horse battery", "another horse battery"


def test_members_with_the_key_form_groups_and_serve_snapshots() -> None:
    with endpoints(3, key=KEY) as made:
        comms = form(made)
        assert [c.all_reduce(np.ones(1))[0] for c in comms[:0]] == []
        sums = together(comms, lambda c: c.all_reduce(np.ones(50_000))[-1])
        assert sums == [3, 3, 3]
        made[0].serve_snapshot(lambda: (7, {"w": np.arange(5)}))
        revision, arrays = fetch_snapshot(made[0].address, 5, key=KEY)
        assert (revision, arrays["w"].tolist()) == (7, [0, 1, 2, 3, 4])
        for wrong in (OTHER, None):
            with pytest.raises(ProtocolError):
                fetch_snapshot(made[0].address, 5, key=wrong)


def test_fixed_and_elastic_worlds() -> None:
    meeting = Rendezvous.listen("127.0.0.1:0", key=KEY)
    places = [meeting, meeting.address]
    comms = together(
        [0, 1],
        lambda r: Communicator.connect(places[r], rank=r, world_size=2, key=KEY),
    )
    assert together(comms, lambda c: c.all_reduce(np.ones(1))[0]) == [2, 2]
    for comm in comms:
        comm.close()
    with Coordinator.listen("127.0.0.1:0", first=2, key=KEY) as where:
        with pytest.raises(ProtocolError, match="another key"):
            Communicator.join(where.address, timeout=5, key=OTHER)
        with pytest.raises(ProtocolError, match="has a key"):
            Communicator.join(where.address, timeout=5)
        comms = together(
            "ab",
            lambda n: Communicator.join(where.address, name=n, timeout=20, key=KEY),
        )
        assert together(comms, lambda c: c.all_reduce(np.ones(1))[0]) == [2, 2]
        for comm in comms:
            comm.close()


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [(KEY, OTHER, "key"), (KEY, None, "key"), (None, KEY, "key")],
)
def test_members_with_different_keys_never_meet(ours, theirs, word) -> None:
    with Endpoint.listen(key=ours) as a, Endpoint.listen(key=theirs) as b:
        members = [a.address, b.address]
        results = together(
            [(a, 0), (b, 1)],
            lambda end: outcome(lambda: end[0].form(1, members, end[1], 1.0)),
        )
        assert isinstance(results[1], ProtocolError | PeerLost), results
        assert word in str(results[1])
        assert isinstance(results[0], Exception)


def test_a_short_key_is_none() -> None:
    with pytest.raises(ConfigError, match="8 bytes"):
        Endpoint.listen(key="short")


def call(address: str, *frames: Frame) -> tuple[list[tuple[Kind, bytes]], bool]:
    """What a listener answers to these frames, and whether it hung up."""
    host, port = address.rsplit(":", 1)
    answers = []
    sock = socket.create_connection((host, int(port)), timeout=30)
    with BlockingConnection(sock, "the listener") as listener:
        for frame in frames:
            listener.send(frame)
        patience = ReadLimits(time.monotonic() + 3)
        try:
            while True:
                header, payload = listener.receive(patience, 1 << 16)
                answers.append((header.kind, bytes(payload)))
        except PeerLost:
            return answers, True
        except Exception:
            return answers, False


HELLO = Frame(Kind.HELLO, payload=json_payload({"purpose": "snapshot"}))


@pytest.mark.parametrize(
    "frames",
    [
        [HELLO],
        [Frame(Kind.PROOF, payload=bytes(authentication.PROOF_BYTES)), HELLO],
        [
            Frame(Kind.AUTH, payload=bytes(authentication.NONCE_BYTES)),
            Frame(Kind.PROOF, payload=bytes(authentication.PROOF_BYTES)),
            HELLO,
        ],
        [Frame(Kind.AUTH, payload=bytes(authentication.NONCE_BYTES)), HELLO],
        [Frame(Kind.AUTH, payload=bytes(authentication.NONCE_BYTES))] * 2,
        [Frame(Kind.AUTH, payload=b"short")],
    ],
)
def test_nobody_gets_past_without_proof(frames) -> None:
    served = []
    with Endpoint.listen(key=KEY) as end:
        end.serve_snapshot(lambda: (served.append(1), {})[0] or (0, {}))
        answers, hung_up = call(end.address, *frames)
        assert hung_up
        assert answers[-1][0] is Kind.REFUSE, answers
        assert text(answers[-1][1])
        assert not served


def test_a_recorded_proof_is_worth_nothing() -> None:
    """The listener's nonce is fresh: the same frames again are refused."""
    with Endpoint.listen(key=KEY) as end:
        end.serve_snapshot(lambda: (1, {}))
        host, port = end.address.rsplit(":", 1)
        mine = os.urandom(authentication.NONCE_BYTES)
        sock = socket.create_connection((host, int(port)), timeout=30)
        patience = ReadLimits(time.monotonic() + 5)
        with BlockingConnection(sock, "it") as dialler:
            dialler.send(Frame(Kind.AUTH, payload=mine))
            _, answer = dialler.receive(patience, 1 << 16)
            theirs = bytes(answer[: authentication.NONCE_BYTES])
            shown = authentication.proof(KEY.encode(), "dialler", mine, theirs)
            recorded = Frame(Kind.PROOF, payload=shown)
            dialler.send(recorded)
            dialler.send(HELLO)
            header, _ = dialler.receive(patience, 1 << 16)
            assert header.kind is Kind.PROOF
            header, _ = dialler.receive(patience, 1 << 16)
            assert header.kind is Kind.WELCOME
        answers, _ = call(end.address, Frame(Kind.AUTH, payload=mine), recorded, HELLO)
        assert answers[-1][0] is Kind.REFUSE


def test_a_listener_shows_nothing_before_the_dialler_has_proved_itself() -> None:
    """By its proof a weak key could be guessed by anybody who asks."""
    with Endpoint.listen(key=KEY) as end:
        nonce = bytes(authentication.NONCE_BYTES)
        asked = Frame(Kind.AUTH, payload=nonce)
        wrong = Frame(Kind.PROOF, payload=bytes(authentication.PROOF_BYTES))
        answers, _ = call(end.address, asked, wrong)
        assert [kind for kind, _ in answers] == [Kind.AUTH, Kind.REFUSE]
        assert len(answers[0][1]) == authentication.NONCE_BYTES
