"""Connections between processes of one machine that the network has no part in.

An endpoint that listens on `host:port` also listens on a Unix socket of that name,
in the kernel's abstract name space: it is in no folder, goes with its process, and is
seen by those who share the network name space. Its frames and handshakes are those
of a TCP connection, without its layers in between.

Who dials an address looks there first. Only processes of one user meet like that: a
name can be taken by anybody, an address of the network cannot.
"""

import os
import socket
import struct
import sys
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

BUFFER_BYTES = 512 << 10
"""What may wait to be read, as far as the system lets us."""
PEER = "a process of this machine"
_POSSIBLE = sys.platform == "linux"
_CREDENTIALS = struct.Struct("3i")


def listen(address: str, backlog: int = 128) -> socket.socket | None:
    """A non-blocking listening socket; None where there can be none of that name."""
    if not _POSSIBLE:
        return None
    with ExitStack() as undo, suppress(OSError):
        sock = undo.enter_context(socket.socket(socket.AF_UNIX))
        sock.bind(_name(address))
        sock.listen(backlog)
        sock.setblocking(False)
        undo.pop_all()
        return sock
    return None


def dial(address: str, timeout: float) -> socket.socket | None:
    """A connected socket; None if no process of ours listens there."""
    if not _POSSIBLE:
        return None
    with ExitStack() as undo, suppress(OSError):
        sock = undo.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(timeout)
        sock.connect(_name(address))
        if ours(sock):
            undo.pop_all()
            return tuned(sock)
    return None


def carries(sock: object) -> bool:
    """Whether a connection is one of these."""
    return getattr(sock, "family", None) == socket.AF_UNIX


def ours(sock: socket.socket) -> bool:
    """Whether a process of this user, as far as can be told, made the other end."""
    option = getattr(socket, "SO_PEERCRED", 17)
    raw = sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    user = _CREDENTIALS.unpack(raw)[1]
    return user == os.geteuid() and user != _nobody()


def tuned(sock: socket.socket) -> socket.socket:
    """With room for what is sent at once."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return sock


def _name(address: str) -> str:
    return f"\0pcp {address}"


@cache
def _nobody() -> int:
    """The number that stands for all users whom this name space of users lacks."""
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return 65534
