"""The coordinator's greeting, and its end."""

import time
from dataclasses import asdict

import pytest
from helpers.worlds.elastic_groups import elastic

from pcp.errors import ConfigError
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.group.coordinator import PURPOSE, Coordinator
from pcp.runtime.group.membership import Past
from pcp.runtime.transport import link
from pcp.runtime.transport.blocking_io import BlockingConnection, ReadLimits
from pcp.runtime.transport.frame import Frame, Kind, json_payload, text


def answer(where: Coordinator, **said: object) -> str:
    """What the coordinator says to a greeting that it refuses."""
    plain = {"purpose": PURPOSE, "name": "a", "address": "127.0.0.1:9"}
    plain |= {"past": asdict(Past(epoch=1))}
    with BlockingConnection(link.dial(where.address, 5), "it") as coordinator:
        coordinator.send(Frame(Kind.HELLO, payload=json_payload(plain | said)))
        patience = ReadLimits(time.monotonic() + 5)
        header, payload = coordinator.receive(patience, 1 << 14)
    assert header.kind is Kind.REFUSE
    return text(payload)


def test_who_is_refused_takes_nobodys_place() -> None:
    with elastic("a") as (where, _):
        before = where._links["a"]
        assert "past or an address" in answer(where, past={"epoch": -1})
        assert "past or an address" in answer(where, past={"epoch": 1, "more": 2})
        assert "write host:port" in answer(where, address="no address")
        assert "its name" in answer(where, name=3)
        assert where._links["a"] is before
        assert before.alive


def test_its_state_is_free_when_it_has_ended(tmp_path) -> None:
    """Also on an endpoint that was closed before it."""
    state = tmp_path / "state"
    with Endpoint.listen() as endpoint:
        first = Coordinator(endpoint, state=state)
        with pytest.raises(ConfigError, match="another coordinator"):
            Coordinator(endpoint, state=state)
    first.close()
    Coordinator.listen("127.0.0.1:0", state=state).close()
