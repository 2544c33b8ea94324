"""The loops that move bulk data: compiled ones, or those in Python.

`_mover` is built where a C compiler was available when pcp was installed. Both kinds
move the same bytes; the compiled loops move them without the interpreter's lock.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pcp.runtime.transport.link import Wire

try:
    from pcp.runtime.transport import _mover  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:
    _mover = None

_INTERFACE = 3
stale = _mover is not None and getattr(_mover, "INTERFACE", 1) != _INTERFACE
"""Whether the installed compiled loops are of another version, and not used."""
compiled: ModuleType | None = None if stale else _mover
"""The compiled loops; None where those in Python are used."""
BULK_BYTES = 32 << 10
"""Payloads of data from this size on go through these loops."""
SMALL_BYTES = 64 << 10
"""Up to so many bytes a socket is called with the interpreter's lock held."""
_PAST_CACHE_BYTES = 4 << 20
BLOCKED, CLOSED, FAILED = 1, 2, 3
"""The reasons for which a compiled loop comes back before it is done."""


def hasher(loops: ModuleType | None) -> "xxhash.xxh3_64":
    """The state of the checksum of a bulk payload, for these loops."""
    return xxhash.xxh3_64() if loops is None else loops.Hash()


def copy(to: NDArray, source: NDArray) -> None:
    """Write a flat array into another of its type, past the cache if it is large."""
    if compiled is not None and to.nbytes >= _PAST_CACHE_BYTES:
        compiled.copy(to.view(np.uint8), source.view(np.uint8))
    else:
        np.copyto(to, source)


def lend(array: NDArray) -> object | None:
    """A DLPack capsule of an array's bytes, for a library with threads of its own.

    Those may give it back while a thread that has the interpreter's lock waits for
    them. None without the compiled loops: what Python can lend takes that lock.
    """
    make = getattr(compiled, "lend", None)  # older compiled loops lack it
    return None if make is None else make(array)


def send(sock: "Wire", views: list[memoryview], loops: ModuleType | None) -> int:
    """Send part of these bytes; how many. A plain socket has `loops`."""
    if loops is None or sum(map(len, views)) > SMALL_BYTES:
        return sock.sendmsg(views)
    return loops.push(sock.fileno(), views)


def receive(sock: "Wire", room: memoryview, loops: ModuleType | None) -> int:
    """Receive bytes into `room`; how many, 0 at the end. As `send`."""
    if loops is None or len(room) > SMALL_BYTES:
        return sock.recv_into(room)
    return loops.pull(sock.fileno(), room)


@contextmanager
def in_python() -> Iterator[None]:
    """Use the loops in Python inside, for new connections; for tests."""
    global compiled
    kept, compiled = compiled, None
    try:
        yield
    finally:
        compiled = kept
