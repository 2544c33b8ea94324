"""Several connections to a peer: order, the window, and every way it ends."""

from collections import deque
from collections.abc import Callable
from threading import current_thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.worlds.communicators import endpoints, eventually, form, outcome, together

from pcp.errors import ConfigError, PeerLost, ProtocolError
from pcp.runtime.collectives.schedule import reference
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.communicator.endpoint import Endpoint
from pcp.runtime.group.coordinator import Coordinator
from pcp.runtime.transport import authentication, striped
from pcp.runtime.transport.address import format_address
from pcp.runtime.transport.frame import Frame, Header, Kind
from pcp.runtime.transport.stream_controller import StreamController
from pcp.runtime.transport.striped import (
    AHEAD_BYTES,
    SMALLEST,
    WINDOW_BYTES,
    StripedLink,
    streams_for,
)

COUNT = 1_234_567


def links(comms) -> list[Any]:
    return [link for c in comms for link in c._group.links.values()]


def inputs(comms) -> list[np.ndarray]:
    return [
        np.random.default_rng(c.rank).standard_normal(COUNT).astype("f") for c in comms
    ]


@pytest.mark.parametrize(("size", "streams"), [(2, 2), (2, 4), (3, 3)])
def test_large_payloads_go_over_the_streams(size: int, streams: int) -> None:
    with endpoints(size, streams=streams) as made:
        comms = form(made)
        arrays = inputs(comms)
        expected = reference(arrays).tobytes()
        for _ in range(3):
            outs = together(comms, lambda c: c.all_reduce(arrays[c.rank].copy()))
            assert [out.tobytes() == expected for out in outs] == [True] * size
        for link in links(comms):
            assert isinstance(link, StripedLink)
            assert len(link._all) == streams
            assert link.bytes_sent == sum(stream.bytes_sent for stream in link._all)
        ring = [comm._group.links[(comm.rank + 1) % size] for comm in comms]
        for link in ring:
            assert isinstance(link, StripedLink)
            assert sum(stream.bytes_sent for stream in link._others) > COUNT
            assert link._first.bytes_sent < link.bytes_sent // 20
            # All is granted in the end, and nothing kept.
            eventually(lambda link=link: not link._sent and not link._kept)


def test_compressed_and_small_operations_too() -> None:
    with endpoints(2, streams=3) as made:
        comms = form(made)
        ones = np.ones(COUNT, np.float32)
        outs = together(comms, lambda c: c.all_reduce(ones.copy(), compression="int8"))
        assert all(np.allclose(out, 2, rtol=0.02) for out in outs)
        small = together(comms, lambda c: c.all_reduce(np.ones(3)))
        assert [out.tolist() for out in small] == [[2.0] * 3] * 2


def test_a_small_window_only_waits(monkeypatch) -> None:
    monkeypatch.setattr(striped, "WINDOW_BYTES", 1 << 20)
    with endpoints(2, streams=3) as made:
        comms = form(made)
        arrays = inputs(comms)
        outs = together(comms, lambda c: c.all_reduce(arrays[c.rank].copy()))
        expected = reference(arrays).tobytes()
        assert [out.tobytes() == expected for out in outs] == [True] * 2


@pytest.mark.parametrize("stream", [0, 1, 2])
def test_losing_a_stream_is_losing_the_peer(stream: int) -> None:
    with endpoints(2, streams=3) as made:
        comms = form(made)
        arrays = inputs(comms)
        link = links(comms)[0]
        made[0].loop.ask(link._all[stream].sever)
        outs = together(
            comms,
            lambda c: outcome(lambda: c.all_reduce(arrays[c.rank], timeout=20)),
        )
        # The end that did not cut the stream notices, and takes the others down.
        assert [type(out) for out in outs] == [PeerLost] * 2
        assert all(
            a.tobytes() == b.tobytes()
            for a, b in zip(arrays, inputs(comms), strict=True)
        )


def test_leaving_is_no_crash() -> None:
    with endpoints(2, streams=3) as made:
        comms = form(made)
        comms[0].close()
        fault = outcome(lambda: comms[1].barrier(timeout=20))
        assert isinstance(fault, PeerLost)
        assert "left the group" in str(fault)


def test_members_that_disagree_are_told() -> None:
    with Endpoint.listen(streams=2) as first, Endpoint.listen(streams=3) as second:
        members = [first.address, second.address]
        outs = together(
            [(0, first), (1, second)],
            lambda it: outcome(lambda: it[1].form(1, members, it[0], 1.0)),
        )
        assert isinstance(outs[1], ProtocolError)
        assert "streams=3, rank 0 streams=2" in str(outs[1])


def test_a_stream_that_cannot_be_dialled_leaves_no_socket(monkeypatch) -> None:
    dialled, plain = [], authentication.dial

    def dial(*args: Any) -> Any:
        if dialled:
            raise PeerLost("it died just now")
        dialled.append(plain(*args))
        return dialled[0]

    with endpoints(2, streams=3) as made:
        monkeypatch.setattr(authentication, "dial", dial)
        members = [endpoint.address for endpoint in made]
        fault = outcome(lambda: made[1].form(1, members, 1, 5))
        assert isinstance(fault, PeerLost)
        assert dialled[0].fileno() == -1


def test_a_stream_that_is_stuck_gets_no_more(ends) -> None:
    a, out, _, _, _ = ends
    for offset in range(20):
        a.send(data(offset, 512 << 10))
        out[2].drain(len(out[2].queue))
    assert len(out[1].frames) <= AHEAD_BYTES // (512 << 10)
    assert len(out[1].frames) + len(out[2].frames) == 20


def test_streams_that_nobody_needs_stay_idle(ends) -> None:
    a, out, _, _, _ = ends
    for offset in range(20):
        a.send(data(offset, 512 << 10))
        out[1].drain(len(out[1].queue))
    assert not out[2].frames


@pytest.mark.parametrize(
    ("round_trip", "window", "steady", "streams"),
    [
        (0.0, 1, False, 1),
        (0.0049, 1, False, 1),
        (0.005, 8 << 20, True, 1),
        (0.005, 8 << 20, False, 5),
        (0.1, 32 << 20, True, 1),
        (0.1, 8 << 20, True, 3),
        (0.1, 2 << 20, True, 7),
        (0.1, 2 << 20, False, 7),
        (0.5, 8 << 20, True, 9),
        (9.0, 8 << 20, True, 16),
    ],
)
def test_far_peers_get_what_fills_the_network(
    round_trip, window, steady, streams
) -> None:
    assert streams_for(round_trip, window, steady) == streams


def test_connections_are_made_by_the_distance_to_each_peer(monkeypatch) -> None:
    """Rank 2 finds rank 0 far away; the others are near."""
    with endpoints(3, shared_memory=False) as made:
        addresses = [end.address for end in made]
        far = made[0].address, "rank 2"

        def round_trip(sock: Any) -> float:
            address = format_address(*sock.getpeername()[:2])
            return 0.02 if (address, current_thread().name) == far else 0.0

        def enter(rank: int) -> Any:
            current_thread().name = f"rank {rank}"
            return made[rank].form(1, addresses, rank, 10.0)

        monkeypatch.setattr(striped, "round_trip", round_trip)
        monkeypatch.setattr(striped, "window", lambda sock: 1 << 20)
        comms = together(range(3), enter)
        streams = {
            (c.rank, peer): len(link._all) if isinstance(link, StripedLink) else 1
            for c in comms
            for peer, link in c._group.links.items()
        }
        assert len(streams) == 6
        assert {pair for pair, count in streams.items() if count > 1} == {
            (0, 2),
            (2, 0),
        }
        assert streams[0, 2] == streams[2, 0] > 2
        sums = together(comms, lambda c: c.all_reduce(np.ones(COUNT, "f"))[-1])
        assert sums == [3] * 3


def test_an_elastic_world_has_them_too() -> None:
    with Coordinator.listen("127.0.0.1:0", first=2) as where:
        comms = together(
            "ab",
            lambda n: Communicator.join(where.address, name=n, timeout=20, streams=3),
        )
        try:
            assert all(isinstance(link, StripedLink) for link in links(comms))
            sums = together(comms, lambda c: c.all_reduce(np.ones(COUNT, "f"))[-1])
            assert sums == [2, 2]
        finally:
            for comm in comms:
                comm.close()


@pytest.mark.parametrize("streams", [0, 17])
def test_the_number_of_streams_has_bounds(streams: int) -> None:
    with pytest.raises(ConfigError, match=f"streams={streams}"):
        Endpoint.listen(streams=streams)


# --- One end alone, its streams and its group imitated ---


class FakeStream:
    """Keeps what it is told to send."""

    def __init__(self) -> None:
        self.sink: Any = None
        self.frames: list[Frame] = []
        self.queue: deque[Frame] = deque()
        self.label = "the peer"
        self.distant = False

    def send(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.queue.append(frame)

    def drain(self, count: int) -> None:
        """The kernel takes so many frames."""
        for _ in range(count):
            frame = self.queue.popleft()
            if frame.on_sent is not None:
                frame.on_sent()

    def recall(self, tag: int, seq: int) -> None:
        pass

    def sever(self) -> None:
        pass


class Up:
    """The group: says in which order it heard what."""

    def __init__(self) -> None:
        self.heard: list[tuple[Kind, int, bytes]] = []

    def place(self, link: Any, header: Header) -> memoryview:
        return memoryview(bytearray(header.length))

    def deliver(self, link: Any, header: Header, payload: memoryview) -> None:
        self.heard.append((header.kind, header.offset, bytes(payload)))


@pytest.fixture
def ends() -> tuple[StripedLink, list[FakeStream], StripedLink, list[FakeStream], Up]:
    made = []
    for _ in "ab":
        streams = [FakeStream() for _ in range(3)]
        streams[0].sink = Up()
        loop: Any = SimpleNamespace(call=lambda what: what())
        made += [StripedLink(loop, streams), streams]  # pyright: ignore[reportArgumentType]
    return *made, made[2].sink


def carry(frame: Frame, link: StripedLink, stream: FakeStream) -> None:
    """A frame arrives at `link` on `stream`."""
    size = len(frame.payload)
    place = (frame.tag, frame.seq, frame.step, frame.offset, size, 0)
    header = Header(frame.kind, 0, *place)
    room = memoryview(b"")
    if size:
        room = link.place(stream, header)  # pyright: ignore[reportArgumentType]
        room[:] = bytes(frame.payload)
    link.deliver(stream, header, room)  # pyright: ignore[reportArgumentType]


def data(offset: int, size: int = SMALLEST, on_sent: Callable | None = None) -> Frame:
    return Frame(
        Kind.DATA, 7, 1, 2, offset, bytes([offset % 251]) * size, on_sent=on_sent
    )


def test_what_overtakes_waits_for_its_turn(ends) -> None:
    a, out, b, into, up = ends
    sent = [data(1), data(2), data(3, size=10), Frame(Kind.DONE, 7, 1), data(4)]
    for frame in sent:
        a.send(frame)
    arrivals = [
        (stream, frame) for stream in (2, 1) for frame in out[stream].frames[::-1]
    ]
    for frame in out[0].frames:
        carry(frame, b, into[0])
    assert up.heard == []
    for stream, frame in arrivals:
        carry(frame, b, into[stream])
    assert up.heard == [(f.kind, f.offset, bytes(f.payload)) for f in sent]
    for grant in into[0].frames:
        carry(grant, a, out[0])
    assert not a._sent
    for stream in out[1:]:
        stream.drain(len(stream.queue))
    assert set(a._load.values()) == {0}
    assert a._under_way == 0
    assert b._kept == 0


def test_the_window_holds_the_sender_back_and_a_recall_drops_what_waits(ends) -> None:
    a, out, b, into, _ = ends
    size, done = 1 << 20, []
    for offset in range(WINDOW_BYTES // size + 5):
        a.send(data(offset, size, lambda: done.append(1)))
    assert len(done) == 2 == len(out[1].frames) + len(out[2].frames)
    for _ in range(2 * WINDOW_BYTES // size):
        for stream in out[1:]:
            stream.drain(min(1, len(stream.queue)))
    assert len(done) == sum(len(stream.frames) for stream in out[1:]) == 32
    assert abs(len(out[1].frames) - len(out[2].frames)) <= 1
    carry(out[0].frames[0], b, into[0])
    carry(out[1].frames[0], b, into[1])
    carry(into[0].frames[0], a, out[0])
    assert len(done) == 33
    a.recall(7, 1)
    assert not a._queue


@pytest.mark.parametrize(
    ("frame", "stream"),
    [
        (Frame(Kind.GRANT, step=9), 0),
        (Frame(Kind.DATA, payload=b"x" * SMALLEST), 0),
        (Frame(Kind.SHARED, payload=b"x" * 9), 0),
        (Frame(Kind.SHARED), 0),
        (Frame(Kind.OPEN, payload=b"x"), 1),
        (Frame(Kind.DONE), 1),
    ],
)
def test_what_no_peer_of_ours_sends_is_refused(ends, frame: Frame, stream: int) -> None:
    _, _, b, into, up = ends
    with pytest.raises(ProtocolError):
        carry(frame, b, into[stream])
    assert up.heard == []


def test_a_peer_cannot_make_us_keep_more_than_the_window(ends) -> None:
    _, _, b, into, _ = ends
    header = Header(Kind.DATA, 0, 0, 0, 0, 0, 4 << 20, 0)
    numbered = [
        Header(Kind.DATA, 0, 0, number, 0, 0, header.length, 0) for number in range(8)
    ]
    for one in numbered:
        b.deliver(into[1], one, b.place(into[1], one))
    with pytest.raises(ProtocolError, match="window"):
        b.place(into[1], Header(Kind.DATA, 0, 0, 8, 0, 0, 1, 0))
    with pytest.raises(ProtocolError, match="twice"):
        b.place(into[1], numbered[-1])


def test_streams_in_reserve_are_used_when_they_make_it_faster() -> None:
    """Lanes that carry 2 MB a second each, two of six to begin with."""
    clock = SimpleNamespace(now=0.0)
    streams = [FakeStream() for _ in range(7)]
    loop: Any = SimpleNamespace(call=lambda what: what())
    link = StripedLink(loop, streams, 2)  # pyright: ignore[reportArgumentType]
    link._use = StreamController(2, 6, clock=lambda: clock.now)
    size, granted = 64 << 10, 0
    for _ in range(800):
        while len(link._queue) < 200:
            link.send(data(0, size))
        clock.now += size / 2e6
        for stream in streams[1:]:
            if stream.queue:
                stream.drain(1)  # which makes room, so that more is taken
        for _ in range(sum(bool(stream.frames) for stream in streams[1:])):
            link._granted(granted)
            granted += 1
    assert link._use.used == 6
    assert all(stream.frames for stream in streams)


@pytest.mark.parametrize(("first", "opened"), [(1, 1), (3, 5), (8, 15), (16, 16)])
def test_as_many_again_are_in_reserve(first: int, opened: int) -> None:
    assert striped.with_reserve(first) == opened
