"""Payloads of the frames that open an operation and abort it.

An OPEN frame: the descriptor's length, the descriptor (JSON), and the eager
payload. An ABORT frame: the rank that aborts (offset), the lost rank plus one (step; 0
for none), and a text.
"""

import json
from collections.abc import Set
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from pcp import strict_json
from pcp.errors import CollectiveAborted, ProtocolError
from pcp.runtime.transport.frame import MAX_TEXT, Header, Kind, text, text_payload
from pcp.wire import EAGER_BYTES

_LENGTH_BYTES = 4

MAX_DESCRIPTOR = 4 << 10
"""The most bytes of a descriptor, as JSON."""
LIMITS = {
    Kind.OPEN: _LENGTH_BYTES + MAX_DESCRIPTOR + EAGER_BYTES,
    Kind.ABORT: MAX_TEXT,
    Kind.LOST: MAX_TEXT,
    Kind.BREAK: MAX_TEXT,
}
"""The most payload bytes by kind of frame, but for DATA; other kinds have none."""


def _plain(value: Any) -> Any:
    """A number or array of numpy as the JSON value of the same meaning."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain, check_circular=False)


class FixedDescriptor(dict[str, Any]):
    """A descriptor that never changes: all calls alike share it, and its bytes."""

    @cached_property
    def written(self) -> bytes:
        """The JSON bytes."""
        return _ENCODER.encode(self).encode()

    def __setitem__(self, key: str, value: Any, /) -> NoReturn:
        raise TypeError(f"the facts of a call are shared: make others than {self} by |")

    def __ior__(self, value: Any, /) -> NoReturn:
        raise TypeError(f"the facts of a call are shared: make others than {self} by |")


def written(descriptor: dict[str, Any]) -> bytes:
    """The JSON bytes of a descriptor."""
    if isinstance(descriptor, FixedDescriptor):
        return descriptor.written
    return _ENCODER.encode(descriptor).encode()


def open_payload(content: bytes, eager: memoryview | bytes) -> bytes:
    """The payload of an OPEN frame: a `written` descriptor and the eager payload."""
    return b"".join((len(content).to_bytes(_LENGTH_BYTES, "big"), content, eager))


def split_open_payload(payload: memoryview) -> tuple[memoryview, memoryview]:
    """The `written` descriptor and the eager payload of an OPEN frame."""
    size = int.from_bytes(payload[:_LENGTH_BYTES], "big")
    if size > MAX_DESCRIPTOR or _LENGTH_BYTES + size > len(payload):
        raise ProtocolError("an OPEN frame whose descriptor does not fit in it")
    end = _LENGTH_BYTES + size
    return payload[_LENGTH_BYTES:end], payload[end:]


def read(content: memoryview) -> dict[str, Any]:
    """The descriptor of these JSON bytes; ProtocolError if they are none."""
    try:
        descriptor = strict_json.parse(str(content, "utf-8"))
    except ValueError as error:
        raise ProtocolError(f"an OPEN frame that is not JSON: {error}") from None
    if not isinstance(descriptor, dict):
        raise ProtocolError("an OPEN frame without a descriptor")
    return descriptor


def disagreement(
    mine: tuple[int, dict[str, Any]],
    theirs: tuple[int, dict[str, Any]],
    free: Set[str],
) -> CollectiveAborted | None:
    """The fault of two members, a rank and a descriptor each; None if they agree."""
    (rank, ours), (peer, other) = mine, theirs
    if (found := difference(ours, other, free)) is None:
        return None
    return CollectiveAborted(
        f"the members disagree about {ours['kind']}: rank {rank} has {found[0]}, rank "
        f"{peer} has {found[1]}; all members must make the same call"
    )


def difference(
    mine: dict[str, Any], theirs: dict[str, Any], free: Set[str]
) -> tuple[str, str] | None:
    """The first difference of two descriptors, except for the keys in `free`."""
    if mine is theirs:
        return None
    for key in mine | theirs:  # the kind of call comes first
        if key not in free and mine.get(key) != theirs.get(key):
            return f"{key} {mine.get(key)}", _printable(f"{key} {theirs.get(key)}")
    return None


def abort_reason(header: Header, payload: memoryview) -> tuple[int, int | None, str]:
    """The aborting rank, the lost rank or None, and the text of an ABORT frame."""
    return header.offset, header.step - 1 if header.step else None, text(payload)


def _printable(theirs: str) -> str:
    """A value of a peer's descriptor for a message: short, printable text."""
    return text(text_payload(theirs[:200]))
