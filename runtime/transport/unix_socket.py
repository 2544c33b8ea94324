"""Connections between processes of one machine, over Unix sockets.

An endpoint that listens on `host:port` also listens on a Unix socket of that name,
in the kernel's abstract name space: it is in no folder, ends with its process, and is
visible in one network name space. Its frames and handshakes are those of a TCP
connection, without its layers in between.

A dialler tries the Unix socket of an address first. Only processes of the same user
connect over it: any user can take a name, but not an address of the network.
"""

import os
import socket
import struct
import sys
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

from pcp.runtime.cage.outside import outside

BUFFER_BYTES = 512 << 10
"""The socket's buffers (bytes), as far as the system allows."""
PEER = "a process of this machine"
_POSSIBLE = sys.platform == "linux"
_CREDENTIALS = struct.Struct("3i")


def listen(address: str, backlog: int = 128) -> socket.socket | None:
    """A non-blocking listening socket; None where there can be none of that name."""
    return outside(_listening, address, backlog) if _POSSIBLE else None


def _listening(address: str, backlog: int) -> socket.socket | None:
    with ExitStack() as undo, suppress(OSError):
        sock = undo.enter_context(socket.socket(socket.AF_UNIX))
        sock.bind(_name(address))
        sock.listen(backlog)
        sock.setblocking(False)
        undo.pop_all()
        return sock
    return None


def dial(address: str, timeout: float) -> socket.socket | None:
    """A connected socket; None if no process of this user listens there."""
    return outside(_connected, address, timeout) if _POSSIBLE else None


def _connected(address: str, timeout: float) -> socket.socket | None:
    with ExitStack() as undo, suppress(OSError):
        sock = undo.enter_context(socket.socket(socket.AF_UNIX))
        sock.settimeout(timeout)
        sock.connect(_name(address))
        if ours(sock):
            undo.pop_all()
            return tuned(sock)
    return None


def carries(sock: object) -> bool:
    """Whether a socket is a Unix socket."""
    return getattr(sock, "family", None) == socket.AF_UNIX


def ours(sock: socket.socket) -> bool:
    """Whether the other end is a process of this user, by the kernel's credentials."""
    option = getattr(socket, "SO_PEERCRED", 17)
    raw = sock.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
    user = _CREDENTIALS.unpack(raw)[1]
    return user == os.geteuid() and user != _nobody()


def tuned(sock: socket.socket) -> socket.socket:
    """The socket, with buffers of `BUFFER_BYTES`."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    return sock


def _name(address: str) -> str:
    return f"\0pcp {address}"


@cache
def _nobody() -> int:
    """The number of all users that this user name space lacks."""
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    return 65534
