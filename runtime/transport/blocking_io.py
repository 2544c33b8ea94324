"""Whole frames over a blocking socket, for handshakes and snapshots.

Groups use `tcp.TcpLink` instead; this is for threads that do one thing.
"""

import math
import time
from dataclasses import dataclass

from pcp.errors import PeerLost, ProtocolError, Timeout
from pcp.runtime.transport.frame import (
    HEADER_BYTES,
    Frame,
    Header,
    pack_header,
    unpack_header,
    verify_payload,
)
from pcp.runtime.transport.link import Wire, os_errors, unanswered


@dataclass(frozen=True)
class Patience:
    """Until when a reader waits (monotonic), and for how many seconds in silence."""

    deadline: float
    silence: float = math.inf

    def left(self, peer: str) -> float:
        """How many seconds the next bytes may take; Timeout when there are none."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Timeout(f"{peer} did not answer in time (receiving)")
        return min(left, self.silence)


def write_frame(sock: Wire, peer: str, frame: Frame) -> None:
    """Send a frame whole, within the socket's timeout."""
    with os_errors(peer, "sending"):
        sock.sendall(pack_header(frame, 0))
        if len(frame.payload):
            sock.sendall(frame.payload)


def read_frame(
    sock: Wire, peer: str, patience: Patience, limit: int
) -> tuple[Header, memoryview]:
    """The next frame, whose payload may have `limit` bytes."""
    header = read_header(sock, peer, patience)
    if header.length > limit:
        raise ProtocolError(f"{peer} announces {header.length} bytes; {limit} allowed")
    payload = memoryview(bytearray(header.length))
    read_payload(sock, peer, patience, header, payload)
    return header, payload


def read_answer(
    sock: Wire, peer: str, patience: Patience, limit: int
) -> tuple[Header, memoryview]:
    """`read_frame`, the first of a peer; who closes before may be no pcp at all."""
    try:
        return read_frame(sock, peer, patience, limit)
    except PeerLost as error:
        raise unanswered(error) from error


def read_header(sock: Wire, peer: str, patience: Patience) -> Header:
    """The next frame's header."""
    raw = memoryview(bytearray(HEADER_BYTES))
    read_into(sock, peer, patience, raw)
    return unpack_header(raw)


def read_payload(
    sock: Wire, peer: str, patience: Patience, header: Header, room: memoryview
) -> None:
    """A frame's payload into `room`, verified."""
    read_into(sock, peer, patience, room)
    if header.length:
        verify_payload(header, room)


def read_into(sock: Wire, peer: str, patience: Patience, view: memoryview) -> None:
    """Fill `view`; Timeout when that takes too long."""
    done = 0
    with os_errors(peer, "receiving"):
        while done < len(view):
            sock.settimeout(patience.left(peer))
            count = sock.recv_into(view[done:])
            if not count:
                raise PeerLost(f"{peer} closed the connection")
            done += count
