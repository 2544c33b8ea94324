"""Frames: what is written is read; anything else is refused."""

import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcp.errors import ProtocolError
from pcp.runtime.transport.frame import (
    HEADER_BYTES,
    MAX_PAYLOAD,
    Frame,
    Kind,
    checksum,
    pack_header,
    parse_json,
    text,
    unpack_header,
    verify_payload,
)

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)


@given(st.sampled_from(Kind), u64, u64, u32, u32, u64, st.binary(max_size=300))
def test_headers_round_trip(kind, epoch, tag, seq, step, offset, payload):
    frame = Frame(kind, tag, seq, step, offset, payload)
    header = unpack_header(pack_header(frame, epoch))
    assert (header.kind, header.epoch, header.tag) == (kind, epoch, tag)
    assert (header.seq, header.step, header.offset) == (seq, step, offset)
    assert header.length == len(payload)
    if payload:
        verify_payload(header, payload)


def test_every_single_bit_flip_in_a_header_is_refused():
    raw = pack_header(Frame(Kind.DATA, 7, 3, 1, 4096, b"payload"), 5)
    for bit in range(8 * HEADER_BYTES):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ProtocolError):
            unpack_header(damaged)


@pytest.mark.parametrize("size", [1, 100, 16_384, 16_385, 100_003])
def test_damage_to_a_payload_is_noticed(size):
    rng = np.random.default_rng(size)
    payload = rng.integers(0, 256, size, np.uint8)
    good = checksum(payload.data)
    for _ in range(60):
        damaged = payload.copy()
        start = int(rng.integers(size))
        burst = damaged[start : start + int(rng.integers(1, 5000))]
        burst ^= rng.integers(1, 256, len(burst), np.uint8)
        assert checksum(damaged.data) != good


def test_the_checksum_is_the_documented_one():
    """The published value of XXH3 (64 bits) of nothing, and of three letters."""
    assert checksum(b"") == 0x2D06800538D394C2 & 0xFFFFFFFF
    assert checksum(b"abc") == 0x78AF5F94892F3950 & 0xFFFFFFFF


def test_another_version_is_named():
    raw = pack_header(Frame(Kind.PING), 0, version=9)
    with pytest.raises(ProtocolError, match="version 9"):
        unpack_header(raw)


def test_a_length_beyond_the_bound_is_refused_on_both_sides():
    with pytest.raises(ProtocolError, match="at most"):
        pack_header(Frame(Kind.DATA, payload=bytes(MAX_PAYLOAD + 1)), 0)
    raw = bytearray(pack_header(Frame(Kind.DATA, payload=b"x"), 0))
    raw[40:44] = (1 << 31).to_bytes(4, "big")
    raw[-4:] = zlib.crc32(raw[:-4]).to_bytes(4, "big")
    with pytest.raises(ProtocolError, match="at most"):
        unpack_header(raw)


@pytest.mark.parametrize("raw", [b"GET / HTTP/1.1\r\n", bytes(60), b"\x16\x03\x01"])
def test_foreign_bytes_are_named_as_such(raw):
    with pytest.raises(ProtocolError, match="not a pcp frame"):
        unpack_header(raw.ljust(HEADER_BYTES, b"\0"))


@pytest.mark.parametrize("payload", [b"", b"\xff\xfe", b"[1]", b"{", b"[" * 100_000])
def test_a_handshake_that_is_no_object_is_refused(payload):
    with pytest.raises(ProtocolError):
        parse_json(payload)


def test_text_from_a_peer_cannot_control_a_terminal():
    assert "\x1b" not in text(b"\x1b[31mred\n\xff")
