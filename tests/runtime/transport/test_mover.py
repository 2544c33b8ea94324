"""The loops of bulk data, compiled and in Python: the same bytes and sums."""

import socket
from contextlib import nullcontext

import numpy as np
import pytest
import xxhash
from helpers.worlds.collective_arguments import draw
from helpers.worlds.communicators import endpoints, form, leave, outcome, together

from pcp.errors import ConfigError, PeerLost, ProtocolError
from pcp.runtime.collectives.schedule import reference
from pcp.runtime.group.connection_options import ConnectionOptions
from pcp.runtime.transport import mover
from pcp.runtime.transport.fault_injection import Fault, FaultPlan
from pcp.runtime.transport.frame import HEADER_BYTES, Frame, Kind
from pcp.runtime.transport.incoming import IncomingFrame
from pcp.runtime.transport.outgoing import OutgoingFrame

compiled = pytest.mark.skipif(mover.compiled is None, reason="no compiled loops")
WHICH = [pytest.param("compiled", marks=compiled), "python"]
LARGE = 300_001


@compiled
@pytest.mark.parametrize("cut", [7, 64, 100, 1024, 65_536, 1 << 20])
def test_the_checksum_is_that_of_xxhash(cut):
    data = np.random.default_rng(cut).integers(0, 256, 1 << 18, dtype=np.uint8).data
    for size in (241, 255, 256, 257, 1024, 1025, 1088, 1089, 100_003, len(data)):
        state = mover.hasher(mover.compiled)
        for at in range(0, size, cut):
            state.update(data[at : min(at + cut, size)])
        assert state.intdigest() == xxhash.xxh3_64_intdigest(data[:size]), size


@compiled
def test_a_checksum_of_few_bytes_is_refused():
    state = mover.hasher(mover.compiled)
    state.update(bytes(240))
    with pytest.raises(ValueError, match="more than 240 bytes"):
        state.intdigest()


@pytest.fixture(params=WHICH)
def loops(request):
    """Which loops the links of a test have."""
    with mover.in_python() if request.param == "python" else nullcontext():
        yield request.param


@pytest.mark.parametrize("checksum", ["xxh3", "none"])
@pytest.mark.parametrize("size", [2, 3])
def test_all_loops_give_the_bits_of_the_reference(loops, size, checksum):
    with endpoints(size, shared_memory=False, checksum=checksum) as made:
        members = form(made)
        for dtype in ("float32", "float64", "int64", "float16"):
            for op in ("sum", "max") if dtype == "float16" else ("sum", "mean", "prod"):
                if op == "mean" and "int" in dtype:
                    continue
                arrays = [draw(rank, LARGE, dtype) for rank in range(size)]
                wanted = reference(arrays, op).tobytes()
                found = together(
                    members,
                    lambda m, arrays=arrays, op=op: m.all_reduced(arrays[m.rank], op),
                )
                assert {f.tobytes() for f in found} == {wanted}, (dtype, op)
        leave(members)


def sent_by(loops, payload, **options):
    """The bytes of a DATA frame with this payload."""
    out = OutgoingFrame(Frame(Kind.DATA, payload=payload), 0, **options)
    here, there = socket.socketpair()
    with here, there:
        raw = b""
        while not out.sent:
            if loops is None:
                count = here.send(b"".join(out.pack()), socket.MSG_DONTWAIT)
                out.advance(count)
            else:
                out.send_bulk(loops, here.fileno())
            raw += there.recv(1 << 20)
        return raw


def taken_by(loops, raw, *, unchecked=False):
    """The payload in the bytes of a DATA frame."""
    taken, room = [], memoryview(bytearray(1 << 20))

    def place(header):
        return room[: header.length]

    incoming = IncomingFrame("a peer", place, lambda _, data: taken.append(data), loops)
    incoming.unchecked = unchecked
    here, there = socket.socketpair()
    with here, there:
        there.settimeout(5)
        while not taken:
            raw = raw[here.send(raw[:50_000]) :] if raw else raw
            found = incoming.receive(there.fileno(), 1 << 20)
            if found is None:
                data = memoryview(there.recv(1 << 20))
                while len(data):
                    data = data[incoming.copied(data) :]
            incoming.settle()
    (payload,) = taken
    return bytes(payload)


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_no_sum_holds_a_damaged_segment(loops, dtype):
    """Values are added as they come; a sum goes on when their checksum has come."""
    for skip in range(4):
        with endpoints(2, shared_memory=False) as made:
            plan = made[0].faults = FaultPlan([Fault("corrupt", skip=skip)])
            members = form(made)
            found = together(
                members,
                lambda m: outcome(
                    lambda: m.all_reduced(np.ones(600_000, dtype), timeout=10)
                ),
            )
        failed = [isinstance(one, PeerLost) for one in found]
        assert any(failed) == bool(plan.fired)
        assert all(failed) or skip  # of the first segment there is no other copy
        for one in found:
            assert isinstance(one, PeerLost) or np.all(one == 2)


ENDS = [None, pytest.param(mover.compiled, marks=compiled)]


@pytest.mark.parametrize("sender", ENDS)
@pytest.mark.parametrize("receiver", ENDS)
def test_a_damaged_bulk_payload_is_refused_by_all_loops(sender, receiver):
    payload = np.random.default_rng(0).bytes(100_000)
    raw = sent_by(sender, payload)
    assert taken_by(receiver, raw) == payload
    for at in (HEADER_BYTES + 60_000, len(raw) - 1):
        damaged = bytearray(raw)
        damaged[at] ^= 4
        with pytest.raises(ProtocolError, match="arrived damaged"):
            taken_by(receiver, bytes(damaged))


@pytest.mark.parametrize("receiver", ENDS)
def test_data_without_a_checksum_is_refused_unless_agreed(receiver):
    payload = bytes(100_000)
    raw = sent_by(None, payload, unchecked=True)
    assert taken_by(receiver, raw, unchecked=True) == payload
    with pytest.raises(ProtocolError, match="without a checksum"):
        taken_by(receiver, raw)


@compiled
def test_one_end_may_have_the_compiled_loops_alone():
    """Of two members that add each other's data one link is made without them."""
    with endpoints(2, shared_memory=False) as made:
        members = form(made)
        link = members[1]._group.links[0]
        members[1]._group.loop.ask(lambda: _without(link))
        arrays = [draw(rank, LARGE) for rank in range(2)]
        found = together(members, lambda m: m.all_reduced(arrays[m.rank]))
        wanted = reference(arrays).tobytes()
        assert {f.tobytes() for f in found} == {wanted}
        leave(members)


def _without(link) -> None:
    link._loops = link._incoming._loops = None


def test_members_agree_on_the_checksum():
    with (
        endpoints(1, checksum="none", shared_memory=False) as some,
        endpoints(1, shared_memory=False) as others,
    ):
        made = [*some, *others]
        at = [endpoint.address for endpoint in made]
        found = together(
            [0, 1], lambda rank: outcome(lambda: made[rank].form(1, at, rank, 1))
        )
        assert any(
            isinstance(error, ProtocolError) and "checksum='none'" in str(error)
            for error in found
        )


def test_an_unknown_checksum_is_refused():
    with pytest.raises(ConfigError, match=r"'crc'.*'xxh3' or 'none'"):
        ConnectionOptions(checksum="crc")  # pyright: ignore[reportArgumentType]
