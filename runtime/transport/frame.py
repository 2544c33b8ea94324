"""Frames: the only bytes members of a group exchange.

A frame is a header of 52 bytes, a payload of a bounded length and, if the flag
`TRAILED` is set, the payload's checksum behind it, in place of the one in the header:

    magic 4s | version u8 | kind u8 | flags u16 | epoch u64 | tag u64 | seq u32
    | step u32 | offset u64 | length u32 | payload checksum u32 | header crc u32

All integers are big-endian. `(tag, seq)` names an operation, `step` and
`offset` a place inside it, `epoch` the group it belongs to. A length is
believed only after the header's CRC-32 matched and the receiver, which knows
the kind, agreed to it; so no length off the wire decides an allocation.

Payloads are guarded by the low half of their XXH3 of 64 bits: damage goes unnoticed
once in 2**32. A checksum behind its payload is computed piece by piece as the bytes
pass, while they are in the cache. Data with the flag `UNCHECKED` has none: members
agree on that when they form a group (`ConnectionOptions.checksum`).
"""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import xxhash

from pcp import strict_json
from pcp.errors import ProtocolError

MAGIC = b"pcpR"
VERSION = 7
"""2: data may come before its receiver has opened the operation. 3: offers of memory
stand behind the descriptor. 4: XXH3 instead of sums of words. 5: the transfers of
every schedule have the number of their round, and sums come back finished. 6: a
checksum may stand behind its payload, and DATA frames have the lengths of what is ready
when they are sent. 7: many members agree along a tree; a goodbye among many says what
its member had called."""
TRAILED = 1
"""Flag: the payload's checksum follows it, in four bytes."""
UNCHECKED = 2
"""Flag: the payload has no checksum."""
MAX_PAYLOAD = 4 << 20
MAX_TEXT = 16 << 10
_LAYOUT = struct.Struct(">4sBBHQQIIQII")
_PREFIX = struct.Struct(">4sBBHQQI")
_CRC = struct.Struct(">I")
_WHOLE = struct.Struct(_LAYOUT.format + "I")
TRAILER_BYTES = _CRC.size
HEADER_BYTES = _LAYOUT.size + _CRC.size


class Kind(IntEnum):
    """The kinds of frames."""

    HELLO = 1
    """First frame of a connection: the dialler's name and purpose (JSON)."""
    WELCOME = 2
    """The answer that lets a connection in (JSON)."""
    REFUSE = 3
    """The answer that refuses a connection, with the reason (text)."""
    OPEN = 4
    """A member brings its part of an operation: descriptor, small payload."""
    DATA = 5
    """A segment of an operation's bytes."""
    DONE = 6
    """The sender's vote: its part of the operation is complete. Among many, what it
    knows of votes; see `agreement`."""
    ABORT = 7
    """The sender's vote against: it gave the operation up (text)."""
    LOST = 8
    """A member of the group is gone; `step` is its rank (text)."""
    BREAK = 9
    """The sender aborts the whole group (text)."""
    PING = 10
    """A heartbeat; its step may ask for an echo, or be one (`peer_health`)."""
    BYE = 11
    """The sender leaves on purpose; among many, after what it had called."""
    SHARE = 12
    """The sender offers memory for its payloads (JSON); see `shared_memory`."""
    GRANT = 13
    """The sender has emptied slot `step` of the receiver's memory."""
    SHARED = 14
    """A DATA frame whose payload is in the sender's memory."""
    CONTROL = 15
    """Between a member and its coordinator (JSON); see `membership`."""
    AUTH = 16
    """A nonce for the proof of the key; see `authentication`."""
    PROOF = 17
    """The dialler's proof that it has the key."""


_KINDS = {kind.value: kind for kind in Kind}


@dataclass(slots=True)
class Frame:
    """One frame to send; `on_sent` runs once the bytes are handed over."""

    kind: Kind
    tag: int = 0
    seq: int = 0
    step: int = 0
    offset: int = 0
    payload: memoryview | bytes = b""
    on_sent: Callable[[], None] | None = field(default=None, repr=False)
    checksum: int | None = None
    """The checksum to claim instead of the payload's own: for fault injection."""
    urgent: bool = False
    """Whether the frame is sent before the end of the loop's turn, however small."""


@dataclass(slots=True)
class Header:
    """One frame's header as received; not frozen, which takes twice as long to make."""

    kind: Kind
    epoch: int
    tag: int
    seq: int
    step: int
    offset: int
    length: int
    checksum: int
    flags: int = 0


class PartialFrame(NamedTuple):
    """A DATA frame that the compiled loop has received in part."""

    move: int
    header: bytes
    start: int
    at: int
    """The first element of the frame, and of the part that is missing."""
    fill: int
    """Bytes received behind `at`."""
    odd: bytes
    """Those of them that are of an element to be added."""
    left: int
    """Bytes of the payload that are to come."""
    total: Any
    """The state of the checksum."""
    trailer: bytes


def checksum(payload: memoryview | bytes) -> int:
    """The 32-bit checksum of a payload (see the module's description)."""
    return xxhash.xxh3_64_intdigest(payload) & 0xFFFFFFFF


def pack_header(
    frame: Frame, epoch: int, version: int = VERSION, flags: int = 0
) -> bytes:
    """The header of `frame` for a group of this epoch.

    With a flag for it the payload's checksum is not in the header.
    """
    length = len(frame.payload)
    total = 0 if flags else frame.checksum
    if total is None:
        total = checksum(frame.payload) if length else 0
    if length > MAX_PAYLOAD:
        raise ProtocolError(f"a frame of {length} bytes; at most {MAX_PAYLOAD} fit")
    head = _LAYOUT.pack(
        MAGIC,
        version,
        frame.kind,
        flags,
        epoch,
        frame.tag,
        frame.seq,
        frame.step,
        frame.offset,
        length,
        total,
    )
    return head + _CRC.pack(zlib.crc32(head))


def data_prefix(epoch: int, tag: int, seq: int, *, unchecked: bool) -> bytes:
    """The common first bytes of the headers of an operation's bulk DATA frames."""
    flags = UNCHECKED if unchecked else TRAILED
    return _PREFIX.pack(MAGIC, VERSION, Kind.DATA, flags, epoch, tag, seq)


def unpack_header(raw: bytes | bytearray | memoryview) -> Header:
    """The header in `raw` (52 bytes); ProtocolError names the wrong field."""
    magic, version, kind, flags, *rest, crc = _WHOLE.unpack_from(raw)
    if magic != MAGIC:
        raise ProtocolError(
            f"the bytes {bytes(raw[:8])!r} are not a pcp frame; is the other end of "
            f"this connection another program?"
        )
    if version != VERSION:
        raise ProtocolError(
            f"the peer speaks protocol version {version}, this member {VERSION}; "
            f"run the same pcp release on all machines"
        )
    if zlib.crc32(raw[: _LAYOUT.size]) != crc:
        raise ProtocolError("a frame header does not match its checksum")
    known = _KINDS.get(kind)
    if known is None:
        raise ProtocolError(f"unknown frame kind {kind}")
    header = Header(known, *rest)
    if flags:
        header.flags = flags
        if flags not in (TRAILED, UNCHECKED) or known is not Kind.DATA:
            raise ProtocolError(f"a frame of {known.name} with the flags {flags:#x}")
    if header.length > MAX_PAYLOAD:
        raise ProtocolError(
            f"a frame announces {header.length} bytes; at most {MAX_PAYLOAD} are taken"
        )
    return header


def verify_payload(header: Header, payload: memoryview | bytes) -> None:
    """Raise ProtocolError unless the payload has the header's checksum."""
    compare(header, checksum(payload), header.checksum)


def pack_trailer(total: int) -> bytes:
    """The checksum behind a payload."""
    return _CRC.pack(total & 0xFFFFFFFF)


def unpack_trailer(trailer: memoryview) -> int:
    """The checksum in the bytes of `pack_trailer`."""
    return _CRC.unpack(trailer)[0]


def compare(header: Header, total: int, claimed: int) -> None:
    """Raise ProtocolError for a payload whose checksum is not the one claimed."""
    if total != claimed:
        raise ProtocolError(
            f"{header.length} bytes of {header.kind.name} arrived damaged "
            f"(checksum differs); check the network and the peer's memory"
        )


def json_payload(values: dict[str, Any]) -> bytes:
    """`values` as the payload of a frame other than OPEN (`descriptor`)."""
    return strict_json.dumps(values, separators=(",", ":")).encode()


def parse_json(payload: memoryview | bytes) -> dict[str, Any]:
    """The dictionary in a payload of `json_payload`, or ProtocolError."""
    try:
        values = strict_json.parse(bytes(payload))
    except ValueError as error:
        raise ProtocolError(f"a frame that is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ProtocolError("a frame that is not a JSON object")
    return values


def text_payload(reason: str) -> bytes:
    """`reason` as the payload of a frame that ends something, cut to its bound."""
    return reason.encode("utf-8", "replace")[:MAX_TEXT]


def text(payload: memoryview | bytes) -> str:
    """A human-readable payload, with anything unprintable replaced."""
    raw = bytes(payload[:MAX_TEXT]).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else " " for c in raw)
