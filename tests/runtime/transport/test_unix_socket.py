"""Members of one machine meet without the network, where they can."""

import errno
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from helpers.worlds.certificates import member_tls
from helpers.worlds.communicators import endpoints, form, outcome, together

from pcp.errors import ConfigError, PeerLost
from pcp.runtime import Communicator, Endpoint
from pcp.runtime.transport import unix_socket
from pcp.runtime.transport.address import format_address
from pcp.runtime.transport.link import accept, dial, listen

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="abstract Unix sockets are Linux's"
)


def carried(comms: list[Communicator]) -> set[bool]:
    """Whether a group's connections do without the network."""
    links = [link for comm in comms for link in comm._group.all_links]
    streams = [stream for link in links for stream in getattr(link, "_all", [link])]
    return {
        unix_socket.carries(getattr(stream, "_tcp", stream)._sock) for stream in streams
    }


@contextmanager
def group(count: int, **options: Any) -> Iterator[list[Communicator]]:
    """Members that have formed a group."""
    with endpoints(count, **options) as made:
        yield form(made)


def sums(comms: list[Communicator]) -> list[float]:
    """Of something small, and of something that goes through memory."""
    found = []
    for size in (7, 300_000):
        parts = together(comms, lambda c, n=size: c.all_reduce(np.ones(n, "f")))
        found += [float(part[-1]) for part in parts]
    return found


@linux
def test_members_of_one_machine_need_no_network() -> None:
    with group(3, key="a key of theirs") as comms:
        assert carried(comms) == {True}
        assert sums(comms) == [3.0] * 6


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(lambda: {"shared_memory": False}, id="no memory"),
        pytest.param(lambda: {"streams": 3}, id="streams"),
        pytest.param(lambda: {"tls": member_tls()}, id="encrypted"),
    ],
)
def test_who_asks_for_the_network_gets_it(options: Callable[[], Any]) -> None:
    with group(2, **options()) as comms:
        assert carried(comms) == {False}
        assert sums(comms) == [2.0] * 4


@linux
def test_another_address_is_dialled_as_it_is() -> None:
    """What it leads through, a proxy as a rule, is there for a reason."""
    with listen("127.0.0.1:0") as proxy:
        through = format_address(*proxy.getsockname()[:2])
        with Endpoint.listen(advertise=through) as a, Endpoint.listen() as b:
            found = together(
                [(a, 0), (b, 1)],
                lambda it: outcome(
                    lambda: it[0].form(1, [a.address, b.address], it[1], 1.0)
                ),
            )
            arrival = accept(proxy)
            assert arrival is not None
            arrival[0].close()
    assert all(isinstance(error, Exception) for error in found)


@linux
def test_a_name_that_another_user_took_is_not_the_peer(monkeypatch) -> None:
    with endpoints(2) as made:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        comms = form(made)
        assert carried(comms) == {False}
        assert sums(comms) == [2.0] * 4


@linux
def test_a_name_that_is_taken_leaves_the_network() -> None:
    """Two may listen on one port, of two addresses that one name stands for."""
    with Endpoint.listen() as first:
        assert unix_socket.listen(first.address) is None
    again = unix_socket.listen(first.address)
    assert again is not None, "a name goes with its endpoint"
    again.close()


def test_nobody_there_is_told_as_ever() -> None:
    with listen("127.0.0.1:0") as gone:
        address = format_address(*gone.getsockname()[:2])
    with pytest.raises(PeerLost, match="refused"):
        dial(address, 2, near=True)
    with pytest.raises(ConfigError, match="not an address"):
        dial("nowhere", 2, near=True)


@linux
def test_another_users_connection_is_not_let_in(monkeypatch) -> None:
    """It is closed, and its end finds the way over the network."""
    theirs = unix_socket.ours
    with Endpoint.listen() as end:
        monkeypatch.setattr(unix_socket, "ours", lambda _: False)
        sock = socket.socket(socket.AF_UNIX)
        with sock:
            sock.settimeout(10)
            sock.connect(unix_socket._name(end.address))
            assert sock.recv(1) == b""
        monkeypatch.setattr(unix_socket, "ours", theirs)
        again = unix_socket.dial(end.address, 5)
        assert again is not None
        again.close()


@linux
def test_nobody_is_nobody_we_know(monkeypatch) -> None:
    """All users that a name space lacks have one number in it."""
    with Endpoint.listen() as end:
        monkeypatch.setattr(unix_socket, "_nobody", os.geteuid)
        assert unix_socket.dial(end.address, 5) is None


@linux
def test_without_descriptors_there_is_none(monkeypatch) -> None:
    def refuse(*_: Any) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(unix_socket.socket, "socket", refuse)
    assert unix_socket.listen("127.0.0.1:1") is None
    assert unix_socket.dial("127.0.0.1:1", 1) is None
