"""What a link is, whatever carries it: one suite for every carrier.

The carriers include a TCP connection behind a wire that delays, tears frames
into pieces, damages, truncates, stalls or cuts them: whatever it does, a sink
sees whole, right frames in order, and then at most one end.
"""

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from helpers.faults.faulty_wire import FaultyWire
from helpers.present import present
from helpers.worlds.certificates import member_tls
from helpers.worlds.communicators import eventually

from pcp.errors import PeerLost, ProtocolError, RuntimeFault
from pcp.runtime.transport import unix_socket
from pcp.runtime.transport.address import format_address
from pcp.runtime.transport.event_loop import Loop
from pcp.runtime.transport.frame import HEADER_BYTES, Frame, Header, Kind, pack_header
from pcp.runtime.transport.in_process import pair
from pcp.runtime.transport.link import Link, accept, dial, listen
from pcp.runtime.transport.shared_memory import SharedLink
from pcp.runtime.transport.tcp import TcpLink

EPOCH = 5
LARGE = 300_000


@dataclass
class Ear:
    """A sink that keeps everything, and refuses what it is told to."""

    heard: list[tuple[Header, bytes]] = field(default_factory=list)
    ends: list[RuntimeFault] = field(default_factory=list)
    refuses: Kind | None = None

    def place(self, link: Link, header: Header) -> memoryview:
        if header.kind is self.refuses:
            raise ProtocolError(f"no {header.kind.name} here")
        return memoryview(bytearray(header.length))

    def deliver(self, link: Link, header: Header, payload: memoryview) -> None:
        if header.kind is self.refuses:
            raise ProtocolError(f"no {header.kind.name} here")
        self.heard.append((header, bytes(payload)))

    def lost(self, link: Link, error: RuntimeFault) -> None:
        self.ends.append(error)


@dataclass
class Ends:
    """Two links and what each of them hears."""

    loops: tuple[Loop, Loop]
    ears: tuple[Ear, Ear]
    links: tuple[Link, Link]

    def send(self, end: int, *frames: Frame) -> None:
        def run() -> None:
            for frame in frames:
                self.links[end].send(frame)

        self.loops[end].ask(run)

    def do(self, end: int, what: Callable[[Link], None]) -> None:
        self.loops[end].ask(lambda: what(self.links[end]))


def connected(address: str) -> tuple[socket.socket, socket.socket]:
    """Both ends of a tuned TCP connection."""
    with listen(address) as listener:
        host, port = listener.getsockname()[:2]
        first = dial(format_address(host, port), 5)
        arrival = eventually(lambda: accept(listener))
    return first, present(arrival)[0]


def nearby() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection without the network."""
    name = f"test-{os.getpid()}-{time.monotonic_ns()}:1"
    listener = unix_socket.listen(name)
    assert listener is not None, "Linux lets everybody have a name that is free"
    with listener:
        first = dial(name, 5, near=True)
        arrival = accept(listener)
    assert arrival is not None
    return first, arrival[0]


@contextmanager
def ends(carrier: str, **harm: Any) -> Iterator[Ends]:
    """Two connected links of this carrier, gone at the end."""
    loops, ears = (Loop("pcp-left"), Loop("pcp-right")), (Ear(), Ear())
    wire = None
    try:
        if carrier == "in_process":
            links: tuple[Link, Link] = pair(loops, ears, ("right", "left"), EPOCH)
        else:
            host = "[::1]:0" if carrier == "tcp6" else "127.0.0.1:0"
            socks = nearby() if carrier.startswith("nearby") else connected(host)
            if harm or carrier in WIRES:
                wire = FaultyWire(**(harm or WIRES[carrier]))
                socks = wire.between(*socks, connected(host))
            near, far = socks
            if carrier.startswith("tls"):
                far = member_tls().serve(far)
            right = TcpLink(loops[1], far, ears[1], "left", EPOCH)
            if carrier.startswith("tls"):
                near = member_tls().dial(near, "right", 20)
            links = tcp = TcpLink(loops[0], near, ears[0], "right", EPOCH), right
            if carrier == "memory":
                left, right = (
                    loop.ask(lambda link=link: SharedLink(link))
                    for loop, link in zip(loops, tcp, strict=True)
                )
                links = left, right
            elif carrier.endswith("read ahead"):
                for loop, link in zip(loops, tcp, strict=True):
                    loop.ask(link.read_ahead)
        yield Ends(loops, ears, links)
        for loop, link in zip(loops, links, strict=True):
            loop.ask(link.sever)
    finally:
        for loop in loops:
            loop.close()
        if wire is not None:
            wire.close()


WIRES: dict[str, dict[str, Any]] = {
    "slow wire": {"delay": 0.002},
    "tearing wire": {"piece": 37},
    "tls tearing wire": {"piece": 37},
}
CARRIERS = [
    "in_process",
    "tcp",
    "tcp read ahead",
    "tcp6",
    "tls",
    "tls read ahead",
    "nearby",
    "nearby read ahead",
    "memory",
    *WIRES,
]


@pytest.fixture(params=CARRIERS)
def carrier(request) -> str:
    if request.param == "tcp6":
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6 loopback")
    if request.param.startswith("nearby") and sys.platform != "linux":
        pytest.skip("only Linux has sockets whose name is in no folder")
    return request.param


def data(index: int, size: int, kind: Kind = Kind.DATA) -> Frame:
    payload = np.random.default_rng(index).bytes(size)
    return Frame(kind, 7, index, index % 5, 11 * index, payload)


def test_frames_arrive_whole_in_order_both_ways(carrier) -> None:
    sizes = [0, 1, 100, 5000, 0, 70_000, 3, LARGE if carrier not in WIRES else 9000]
    frames = [data(i, size) for i, size in enumerate(sizes)]
    with ends(carrier) as both:
        for end in (0, 1):
            both.send(end, *frames)
        for ear in both.ears:
            eventually(lambda ear=ear: len(ear.heard) == len(frames), 20)
            for (header, payload), frame in zip(ear.heard, frames, strict=True):
                assert payload == frame.payload
                assert (header.kind, header.epoch) == (Kind.DATA, EPOCH)
                assert (header.tag, header.seq) == (frame.tag, frame.seq)
                assert (header.step, header.offset) == (frame.step, frame.offset)
            assert not ear.ends


def test_a_buffer_may_change_once_it_is_said_to_be_sent(carrier) -> None:
    room, sent = bytearray(b"a" * 50_000), threading.Event()
    with ends(carrier) as both:
        both.send(0, Frame(Kind.DATA, payload=memoryview(room), on_sent=sent.set))
        assert sent.wait(20)
        room[:] = b"b" * len(room)
        eventually(lambda: len(both.ears[1].heard) == 1, 20)
        assert both.ears[1].heard[0][1] == b"a" * len(room)


def test_what_is_recalled_may_change_at_once(carrier) -> None:
    """It arrives as it was, or not at all; other operations lose nothing."""
    room, told = bytearray(b"a" * 200_000), []
    with ends(carrier) as both:

        def run() -> None:
            link = both.links[0]
            for step in range(4):
                part = memoryview(room)[50_000 * step :][:50_000]
                told_sent = lambda: told.append(1)  # noqa: E731
                link.send(Frame(Kind.DATA, 1, 1, step, 0, part, told_sent))
            link.send(Frame(Kind.DATA, 1, 2, 0, 0, b"other"))
            link.recall(1, 1)
            told.clear()
            room[:] = b"b" * len(room)

        both.loops[0].ask(run)
        both.send(0, Frame(Kind.PING))
        ear = both.ears[1]
        eventually(lambda: any(h.kind is Kind.PING for h, _ in ear.heard), 20)
        for header, payload in ear.heard:
            if (header.tag, header.seq) == (1, 1):
                assert payload == b"a" * 50_000
        assert [p for h, p in ear.heard if h.seq == 2] == [b"other"]
        assert not told


def test_closing_delivers_what_was_queued_and_ends_once(carrier) -> None:
    with ends(carrier) as both:
        size = 20_000 if carrier in WIRES else LARGE
        both.send(0, data(1, size), Frame(Kind.BYE))
        both.do(0, lambda link: link.close(flush=10.0))
        ear = both.ears[1]
        eventually(lambda: bool(ear.ends), 20)
        assert [h.kind for h, _ in ear.heard] == [Kind.DATA, Kind.BYE]
        assert ear.heard[0][1] == data(1, size).payload
        time.sleep(0.05)
        assert len(ear.ends) == 1
        assert isinstance(ear.ends[0], PeerLost)
        both.send(0, data(2, 10))  # to nobody, and no error


def test_what_has_arrived_can_be_had_at_once(carrier) -> None:
    """Without the loop's help, which stands still meanwhile; and only once."""
    with ends(carrier) as both:
        link, ear = both.links[1], both.ears[1]
        both.send(0, *[data(i, 5000) for i in range(4)])

        def exhausted() -> bool:
            link.exhaust()
            return len(ear.heard) == 4

        both.loops[1].ask(lambda: eventually(exhausted, 8))
        both.send(0, data(4, 10))
        eventually(lambda: len(ear.heard) == 5)
        assert [h.seq for h, _ in ear.heard] == list(range(5))
        assert not ear.ends


def test_an_urgent_frame_arrives_while_its_sender_is_busy(carrier) -> None:
    with ends(carrier) as both:
        heard = both.ears[1].heard
        both.send(0, data(0, 10))
        eventually(lambda: len(heard) == 1, 20)

        def busy() -> None:
            both.links[0].send(Frame(Kind.OPEN, 7, 1))
            both.links[0].send(Frame(Kind.DONE, 7, 2, urgent=True))
            eventually(lambda: len(heard) == 3, 8)

        both.loops[0].ask(busy)
        assert [h.seq for h, _ in heard] == [0, 1, 2]


def test_a_cut_connection_is_lost_once_for_the_other_end(carrier) -> None:
    with ends(carrier) as both:
        both.do(0, lambda link: link.sever())
        eventually(lambda: bool(both.ears[1].ends), 20)
        assert isinstance(both.ears[1].ends[0], PeerLost)
        assert not both.ears[0].ends
        assert not both.links[0].alive
        both.do(0, lambda link: link.sever())
        both.do(1, lambda link: link.close())
        time.sleep(0.05)
        assert len(both.ears[1].ends) == 1


@pytest.mark.parametrize("size", [0, 500])
def test_a_frame_the_sink_refuses_ends_the_link(carrier, size) -> None:
    with ends(carrier) as both:
        both.ears[1].refuses = Kind.LOST
        both.send(0, data(1, 5), data(2, size, Kind.LOST), data(3, 5))
        eventually(lambda: bool(both.ears[1].ends), 20)
        assert isinstance(both.ears[1].ends[0], ProtocolError)
        assert [h.seq for h, _ in both.ears[1].heard] == [1]


def test_damage_and_another_epoch_end_the_link(carrier) -> None:
    for bad in ("checksum", "epoch"):
        with ends(carrier) as both:
            frame = data(1, 500)
            if bad == "checksum":
                frame.checksum = 1
            else:
                both.do(0, lambda link: setattr(link, "epoch", EPOCH + 1))
            both.send(0, frame)
            eventually(lambda: bool(both.ears[1].ends), 20)
            assert isinstance(both.ears[1].ends[0], ProtocolError), bad
            assert not both.ears[1].heard


def test_traffic_is_counted_and_dated(carrier) -> None:
    with ends(carrier) as both:
        before = time.monotonic()
        both.send(0, data(1, 1000), data(2, 0))
        eventually(lambda: len(both.ears[1].heard) == 2, 20)
        wanted = 1000 + 2 * HEADER_BYTES
        eventually(lambda: both.links[0].bytes_sent == wanted)
        assert both.links[1].bytes_received == wanted
        assert both.links[0].last_sent >= before
        assert both.links[1].last_heard >= before
        assert both.links[0].alive
        assert both.links[1].alive
        assert both.links[0].label == "right"


@pytest.mark.parametrize("ahead", [False, True])
def test_what_came_before_a_reset_is_read_though_sending_fails_first(ahead) -> None:
    """A peer votes, then is killed with unread bytes: its vote counts."""
    loop, ear, (near, far) = Loop(), Ear(), connected("127.0.0.1:0")
    try:
        link = TcpLink(loop, far, ear, "peer", EPOCH)
        if ahead:
            loop.ask(link.read_ahead)
        frames = [data(i, size) for i, size in enumerate((70_000, 0, 100))]

        def fail_to_send() -> None:
            for frame in frames:
                near.sendall(pack_header(frame, EPOCH) + bytes(frame.payload))
            link.send(Frame(Kind.PING, payload=b"p" * 5000))
            assert select.select([near], [], [], 5)[0], "nothing arrived"
            near.close()
            poll = select.poll()
            poll.register(far, select.POLLHUP)
            assert poll.poll(5000), "no reset"
            link.send(data(9, 70_000))
            link.send(Frame(Kind.PING))

        loop.ask(fail_to_send)
        eventually(lambda: bool(ear.ends))
        assert [payload for _, payload in ear.heard] == [f.payload for f in frames]
        assert isinstance(ear.ends[0], PeerLost)
        assert len(ear.ends) == 1
        assert not link.alive
    finally:
        near.close()
        loop.close()


def test_what_follows_a_refusal_is_read_in_large_pieces() -> None:
    """A peer that goes on talking must not keep the loop busy with it."""

    class Counting(socket.socket):
        calls = bytes = 0

        def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
            count = super().recv_into(buffer, nbytes, flags)
            self.calls, self.bytes = self.calls + 1, self.bytes + count
            return count

    loop, ear, (near, far) = Loop(), Ear(), connected("127.0.0.1:0")
    wire = Counting(fileno=far.detach())
    try:
        ear.refuses = Kind.LOST
        TcpLink(loop, wire, ear, "peer", EPOCH)
        near.settimeout(5)
        near.sendall(pack_header(Frame(Kind.LOST), EPOCH) + bytes(1 << 20))
        eventually(lambda: wire.bytes > 1 << 20, 5)
        assert wire.calls < 200
        assert isinstance(ear.ends[0], ProtocolError)
    finally:
        near.close()
        loop.close()


# A wire that does harm.


@pytest.mark.parametrize("harm", ["corrupt", "cut", "truncate"])
@pytest.mark.parametrize(
    ("carrier", "at"),
    [*(("tcp", at) for at in (3, 60, 5000, 40_000)), ("tls", 5000), ("tls", 40_000)],
)
def test_harm_on_the_wire_is_an_end_and_never_a_wrong_frame(carrier, harm, at) -> None:
    with ends(carrier, **{harm: at}) as both:
        frames = [data(i, 9000) for i in range(6)]
        both.send(0, *frames)
        ear = both.ears[1]
        eventually(lambda: bool(ear.ends), 20)
        if harm != "cut":  # a reset may overtake what came before it
            right = at // (9000 + HEADER_BYTES)
            handshake = carrier == "tls"
            assert right - handshake <= len(ear.heard) <= right
        for (_, payload), frame in zip(ear.heard, frames, strict=False):
            assert payload == frame.payload
        wanted = ProtocolError if harm == "corrupt" else PeerLost
        assert isinstance(ear.ends[0], wanted)
        assert len(ear.ends) == 1


def test_a_stalled_wire_blocks_nobody_else() -> None:
    """The sender goes on queueing, its loop goes on turning; silence shows."""
    with ends("tcp", stall=5000) as both:
        both.send(0, *[data(i, LARGE) for i in range(40)])
        assert both.loops[0].ask(lambda: 1, 5) == 1
        both.send(1, data(1, 100))
        eventually(lambda: len(both.ears[0].heard) == 1, 10)
        eventually(lambda: both.links[1].last_heard < time.monotonic() - 0.2, 10)
        assert not both.ears[1].heard
        both.do(0, lambda link: link.close(flush=0.2))
        eventually(lambda: not both.links[0].alive, 5)
