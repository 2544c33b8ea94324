"""Whoever waits for a coordinator, or for rank 0, is told what for."""

import socket

import pytest

from pcp.errors import PeerLost, Timeout
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.transport import connect_warning
from pcp.runtime.transport.connect_warning import ConnectWarning


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def test_who_joins_without_a_coordinator_is_told_once(
    monkeypatch, caplog, nobody: str
) -> None:
    monkeypatch.setattr(connect_warning, "QUIET_SECONDS", 0.3)
    with pytest.raises(PeerLost, match="no coordinator at"):
        Communicator.join(nobody, timeout=1.5)
    assert caplog.text.count("no coordinator yet") == 1
    assert nobody in caplog.text
    assert "trying for 1 s more" in caplog.text


def test_who_connects_without_rank_0_is_told_once(
    monkeypatch, caplog, nobody: str
) -> None:
    monkeypatch.setattr(connect_warning, "QUIET_SECONDS", 0.3)
    with pytest.raises(Timeout, match="nobody hosts"):
        Communicator.connect(nobody, rank=1, world_size=2, timeout=1.5)
    assert caplog.text.count("no rank 0 yet") == 1


def test_a_moment_is_not_worth_a_word(caplog) -> None:
    ConnectWarning("coordinator").failed(PeerLost("refused"), deadline=0.0)
    assert not caplog.text
