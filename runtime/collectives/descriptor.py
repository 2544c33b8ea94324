"""What the frames say that announce an operation and give it up.

An OPEN frame: the descriptor's length, the descriptor (JSON), and the eager
payload. An ABORT frame: who gave up (offset), the lost rank plus one (step; 0 for
none), and a text.
"""

import json
from collections.abc import Set
from typing import Any

import numpy as np

from pcp.errors import ProtocolError
from pcp.runtime.transport.frame import MAX_TEXT, Header, Kind, text, text_payload
from pcp.wire import EAGER_BYTES

_LENGTH_BYTES = 4

MAX_DESCRIPTOR = 4 << 10
"""Bytes of JSON; more is refused."""
LIMITS = {
    Kind.OPEN: _LENGTH_BYTES + MAX_DESCRIPTOR + EAGER_BYTES,
    Kind.ABORT: MAX_TEXT,
    Kind.LOST: MAX_TEXT,
    Kind.BREAK: MAX_TEXT,
}
"""The most a frame of a group may bring, besides bulk data; others bring nothing."""


def _plain(value: Any) -> Any:
    """A number or array of numpy's, which callers give where Python's are asked for."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)


def written(descriptor: dict[str, Any]) -> bytes:
    """A descriptor as it travels."""
    return _ENCODER.encode(descriptor).encode()


def opening(content: bytes, eager: memoryview | bytes) -> bytes:
    """An OPEN frame's payload, of a descriptor that is `written`."""
    return b"".join((len(content).to_bytes(_LENGTH_BYTES, "big"), content, eager))


def split_opening(payload: memoryview) -> tuple[memoryview, memoryview]:
    """The descriptor, as it is written, and the eager payload in an OPEN frame."""
    size = int.from_bytes(payload[:_LENGTH_BYTES], "big")
    if size > MAX_DESCRIPTOR or _LENGTH_BYTES + size > len(payload):
        raise ProtocolError("an OPEN frame whose descriptor does not fit in it")
    end = _LENGTH_BYTES + size
    return payload[_LENGTH_BYTES:end], payload[end:]


def read(content: memoryview) -> dict[str, Any]:
    """The descriptor that was written like this."""
    try:
        descriptor = json.loads(str(content, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"an OPEN frame that is not JSON: {error}") from None
    if not isinstance(descriptor, dict):
        raise ProtocolError("an OPEN frame without a descriptor")
    return descriptor


def difference(
    mine: dict[str, Any], theirs: dict[str, Any], free: Set[str]
) -> tuple[str, str] | None:
    """Where two descriptors differ first, except for the keys in `free`."""
    if mine is theirs:
        return None
    for key in mine | theirs:  # the kind of call comes first
        if key not in free and mine.get(key) != theirs.get(key):
            return f"{key} {mine.get(key)}", _printable(f"{key} {theirs.get(key)}")
    return None


def abort_reason(header: Header, payload: memoryview) -> tuple[int, int | None, str]:
    """Who gave up, the lost rank, if any, and the text of an ABORT frame."""
    return header.offset, header.step - 1 if header.step else None, text(payload)


def _printable(theirs: str) -> str:
    """What a peer says of itself, fit for a message: short, nothing but text."""
    return text(text_payload(theirs[:200]))
