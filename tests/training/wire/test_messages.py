"""The control protocol: messages survive, everything else is a ProtocolError."""

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcp.errors import PeerLost, ProtocolError, Timeout
from pcp.runtime.transport.frame import Frame, Kind, pack_header
from pcp.training.wire import messages, operator_messages
from pcp.training.wire.channel import Channel, connect
from pcp.training.wire.message import DataInput, Message, encode
from pcp.training.wire.operator_messages import Order, Status, StatusQuery, Taken

PREPARED = messages.Prepared(
    round=1,
    epoch=2,
    digest="0" * 64,
    loss=1.5,
    loss_first=2.5,
    steps=3,
    tokens=4,
    bytes_sent=5,
    bytes_received=6,
    compute_seconds=7.0,
    exchange_seconds=8.0,
)
MESSAGES = [
    PREPARED,
    messages.Hello(
        version=1,
        worker="w",
        target="cpu",
        backend="cpu",
        device="local-task",
        address="127.0.0.1:1",
        prepared=PREPARED,
    ),
    messages.Expects(
        experiment={"tau": 3},
        inputs=[DataInput(name="ids", shape=[4, 8], dtype="i64")],
        data="1" * 64,
        data_parts=[("x", "2" * 32)],
    ),
    messages.Refused(reason="no"),
    messages.Restore(round=3, source=None),
    messages.Ready(round=3, digest="0" * 64),
    messages.Lacking(round=3),
    messages.RoundStart(
        round=1,
        epoch=1,
        members=["a:1"],
        rank=0,
        lease=[(0, 4), (8, 12)],
        steps=2,
        longest=3,
    ),
    messages.Computed(round=1, epoch=1),
    messages.Stalled(reason="no inner step for 12 s"),
    messages.LeaseGrant(turn=7, lease=[(0, 4)], steps=2),
    messages.Push(turn=7, seconds=0.5),
    messages.Commit(round=1, epoch=1, digest="a" * 64, validate_share=(0, 2)),
    messages.Validated(round=1, loss_sum=3.0, batches=2),
    messages.GroupFailed(round=1, epoch=1, reason="lost", lost=[2, 5]),
    messages.Heartbeat(
        meeting=messages.InnerExchangeReport(round=1, epoch=1, entered=2, waits=0.5)
    ),
    messages.Failed(reason="no data"),
    messages.Shutdown(reason="done"),
    StatusQuery(),
    Order(key="k", action="drain", worker=3),
    Taken(said="worker 3 leaves"),
    Status(values={"round": 3}),
]


@pytest.fixture
def ends():
    left, right = socket.socketpair()
    # Channel sets TCP options: use a real connection instead of the pair.
    left.close()
    right.close()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    channels = Channel(near), Channel(far)
    yield channels
    for channel in channels:
        channel.close()


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.kind)
def test_a_message_arrives_as_it_was_sent(ends, message):
    near, far = ends
    near.send(message)
    assert far.receive(5) == message


def test_every_kind_of_message_is_tried():
    kinds = {m.kind for m in MESSAGES} | {"welcome"}  # which the runs send
    homes = {messages.__name__, operator_messages.__name__}
    here = [c for c in Message.__subclasses__() if c.__module__ in homes]
    known = {c.model_fields["kind"].default for c in here}
    assert kinds == known


def test_a_blob_follows_its_message(ends):
    near, far = ends
    content = bytes(range(256)) * 20000
    thread = threading.Thread(target=near.send_blob, args=(content,))
    thread.start()
    assert far.receive_blob(len(content), 5) == content
    thread.join(30)


def test_silence_is_a_timeout_and_an_end_is_a_loss(ends):
    near, far = ends
    with pytest.raises(Timeout, match="did not answer in time"):
        far.receive(0.05)
    near.close()
    with pytest.raises(PeerLost, match="closed the connection"):
        far.receive(5)


def test_an_end_inside_a_frame_is_a_loss(ends):
    near, far = ends
    payload = encode(MESSAGES[0])
    raw = pack_header(Frame(Kind.DATA, tag=1, payload=payload), 0) + payload
    near._connection.wire.sendall(raw[:-3])
    near.close()
    with pytest.raises(PeerLost):
        far.receive(5)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.PING),
        Frame(Kind.DATA, tag=2, payload=b"{}"),
        Frame(Kind.DATA, tag=1, payload=b"{}"),
        Frame(Kind.DATA, tag=1, payload=b"\xff\xfe"),
        Frame(Kind.DATA, tag=1, payload=b'{"kind": "ready", "round": -1}'),
        Frame(Kind.DATA, tag=1, payload=b'{"kind": "ready", "round": 1, "x": 2}'),
    ],
)
def test_a_valid_frame_with_nonsense_is_refused(ends, frame):
    near, far = ends
    near._connection.wire.sendall(pack_header(frame, 0) + bytes(frame.payload))
    with pytest.raises(ProtocolError):
        far.receive(5)


def test_another_frame_version_says_what_to_do(ends):
    near, far = ends
    near._connection.wire.sendall(pack_header(Frame(Kind.DATA, tag=1), 0, version=9))
    with pytest.raises(ProtocolError, match="same pcp release"):
        far.receive(5)


@given(st.binary(max_size=200))
def test_no_bytes_are_taken_for_a_message(raw):
    with pytest.raises(ProtocolError):
        messages.decode(raw)


@given(st.integers(0, 400), st.integers(1, 255))
def test_a_flipped_byte_never_changes_a_message(at, mask):
    payload = encode(MESSAGES[0])
    raw = bytearray(pack_header(Frame(Kind.DATA, tag=1, payload=payload), 0) + payload)
    raw[at % len(raw)] ^= mask
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    channel = Channel(far)
    try:
        near.sendall(raw)
        near.close()
        with pytest.raises((ProtocolError, PeerLost)):
            channel.receive(5)
    finally:
        channel.close()


def test_nobody_there_is_said_clearly():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        with pytest.raises(PeerLost, match=f"no shepherd at 127.0.0.1:{port}"):
            connect("127.0.0.1", port, 1.0)
