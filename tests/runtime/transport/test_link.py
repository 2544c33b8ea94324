"""Sockets as members use them: addresses, IPv6, a kernel that gives up in time."""

import errno
import select
import socket
import time

import numpy as np
import pytest
from helpers.worlds.communicators import endpoints, eventually, form, outcome, together

from pcp.errors import ConfigError
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.group.coordinator import Coordinator
from pcp.runtime.group.rendezvous import Rendezvous
from pcp.runtime.group.state_transfer import fetch_snapshot
from pcp.runtime.transport.address import format_address, parse_address
from pcp.runtime.transport.link import accept, dial, endure, listen
from pcp.runtime.transport.tcp import TcpLink


@pytest.fixture
def six() -> str:
    """Any port of this machine's IPv6 loopback."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    return "[::1]:0"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:80", "127.0.0.1", 80),
        ("[::1]:0", "::1", 0),
        ("[fe80::1%eth0]:65535", "fe80::1%eth0", 65535),
        ("a.host.name:1", "a.host.name", 1),
    ],
)
def test_addresses_round_trip(text, host, port) -> None:
    assert parse_address(text) == (host, port)
    assert format_address(host, port) == text


@pytest.mark.parametrize("text", ["", ":1", "h:", "h:-1", "h:65536", "::1:8", "[]:1"])
def test_what_is_no_address_is_refused(text) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


def test_a_fixed_world_over_ipv6(six) -> None:
    meeting = Rendezvous.listen(six)
    places = [meeting, meeting.address, meeting.address]
    comms = together(
        range(3),
        lambda rank: Communicator.connect(places[rank], rank=rank, world_size=3),
    )
    try:
        assert all(c.address and c.address.startswith("[::1]:") for c in comms)
        for size in (3, 50_000):
            sums = together(comms, lambda c, n=size: c.all_reduce(np.ones(n))[-1])
            assert sums == [3, 3, 3]
    finally:
        for comm in comms:
            comm.close()


def test_an_elastic_world_over_ipv6(six) -> None:
    with Coordinator.listen(six, first=2) as where:
        assert where.address.startswith("[::1]:")
        comms = together(
            ["a", "b"], lambda name: Communicator.join(where.address, name=name)
        )
        try:
            assert together(comms, lambda c: c.all_reduce(np.ones(3))[0]) == [2, 2]
        finally:
            for comm in comms:
                comm.close()


def test_a_snapshot_and_shared_memory_over_ipv6(six) -> None:
    with Endpoint.listen(six) as a, Endpoint.listen(six) as b:
        a.serve_snapshot(lambda: (4, {"w": np.arange(7)}))
        revision, arrays = fetch_snapshot(a.address, 5)
        assert (revision, arrays["w"].tolist()) == (4, list(range(7)))
        comms = form([a, b])
        sums = together(comms, lambda c: c.all_reduce(np.ones(300_000))[-1])
        assert sums == [2, 2]


def test_sockets_of_a_group_are_probed_and_bounded() -> None:
    with endpoints(2, shared_memory=False) as made:
        comms = form(made)
        for comm in comms:
            (link,) = comm._group.all_links
            assert isinstance(link, TcpLink)
            sock = link._sock
            assert isinstance(sock, socket.socket)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                option = socket.TCP_USER_TIMEOUT
                assert sock.getsockopt(socket.IPPROTO_TCP, option) == 120_000


@pytest.mark.skipif(
    not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the system has no such bound"
)
def test_the_kernel_gives_up_a_peer_that_takes_nothing() -> None:
    """A stopped process: its kernel acknowledges probes, but has no room."""
    with listen("127.0.0.1:0") as listener:
        address = format_address(*listener.getsockname()[:2])
        with dial(address, 5) as sock:
            endure(sock, 1.0)
            arrivals: list = []
            eventually(
                lambda: (
                    bool(arrivals.append(accept(listener))) or arrivals[-1] is not None
                )
            )
            with arrivals[-1][0]:
                sock.setblocking(False)
                start, error = time.monotonic(), None
                while error is None and time.monotonic() < start + 30:
                    select.select([], [sock], [], 0.5)
                    fault = outcome(lambda: sock.send(bytes(1 << 20)))
                    if isinstance(fault, OSError) and fault.errno != errno.EAGAIN:
                        error = fault
                assert error is not None
                assert error.errno == errno.ETIMEDOUT
