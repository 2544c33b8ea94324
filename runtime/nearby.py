"""Connections between processes of one machine that the network has no part in.

An endpoint that listens on `host:port` also listens on a Unix socket of that name,
in the kernel's abstract name space: it is in no folder, goes with its process, and is
seen by those who share the network name space. Its frames and handshakes are those
of a TCP connection; a frame takes half as long.

Who dials an address looks there first. Only a process of the same user counts as the
peer: a name can be taken by anybody, an address of the network cannot.
"""

import os
import socket
import struct
import sys

BUFFER_BYTES = 512 << 10
"""What may wait to be read, as far as the system lets us."""
PEER = "a process of this machine"
_POSSIBLE = sys.platform == "linux"
_CREDENTIALS = struct.Struct("3i")


def listen(address: str, backlog: int = 128) -> socket.socket | None:
    """A non-blocking listening socket; None where there can be none of that name."""
    if not _POSSIBLE:
        return None
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(_name(address))
        sock.listen(backlog)
    except OSError:
        sock.close()
        return None
    sock.setblocking(False)
    return sock


def dial(address: str, timeout: float) -> socket.socket | None:
    """A connected socket; None if no process of ours listens there."""
    if not _POSSIBLE:
        return None
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout)
        sock.connect(_name(address))
        if _user(sock) == os.geteuid():
            return tuned(sock)
    except OSError:
        pass
    sock.close()
    return None


def carries(sock: object) -> bool:
    """Whether a connection is one of these."""
    return getattr(sock, "family", None) == socket.AF_UNIX


def tuned(sock: socket.socket) -> socket.socket:
    """With room for what is sent at once."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return sock


def _name(address: str) -> str:
    return f"\0pcp {address}"


def _user(sock: socket.socket) -> int:
    """Who had the other end made."""
    option = getattr(socket, "SO_PEERCRED", 17)
    raw = sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(raw)[1]
