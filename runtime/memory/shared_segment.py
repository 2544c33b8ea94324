"""Memory without a name that several processes of one machine map.

The owner creates a segment and offers it (`Segment.offer`). A process that can open the
offer and finds the nonce there maps the same memory, read-only as a rule. The segment
is sealed against shrinking, so no process can take mapped pages away from a reader. The
memory lives for as long as one process maps it: a reader keeps the bytes of a dead
owner.
"""

import errno
import fcntl
import itertools
import mmap
import os
import secrets
import sys
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcp.runtime.memory.arena import Placement

SMALLEST = 64 << 10
"""A smaller payload gets no memory, and no connection, of its own."""
HEAD_BYTES = mmap.PAGESIZE
"""The nonce and the token have the first page."""
_NONCE_BYTES = 16
_TOKEN = 8
"""In words of 8 bytes: on a cache line of its own."""
_SEALS = 0 if not hasattr(fcntl, "F_SEAL_SHRINK") else fcntl.F_SEAL_SHRINK
_MADV_POPULATE_WRITE = 23
"""Linux 5.14; the mmap module has no name for it."""
_UNTRACKED: dict[str, Any] = {} if sys.version_info < (3, 13) else {"trackfd": False}
"""Older versions of the module duplicate the descriptor for every map."""


_NUMBERS = itertools.count()


class Segment:
    """A shared segment, as its owner or one of its readers has mapped it."""

    def __init__(self, memory: mmap.mmap, descriptor: int | None, nonce: bytes) -> None:
        self.number = next(_NUMBERS)
        """Unique in this process; a reader knows the segment by its owner's number."""
        self.nbytes = len(memory) - HEAD_BYTES
        self.nonce = nonce
        whole = np.frombuffer(memory, np.uint8)
        self._words = whole[:HEAD_BYTES].view(np.uint64)
        self.octets: NDArray[np.uint8] = whole[HEAD_BYTES:]
        """The bytes behind the head; they stay mapped while a view of them is left."""
        self.address = address(self.octets)
        """The address of `octets` in this process."""
        self.descriptor = descriptor
        """The file descriptor that the offer names; None for a reader."""
        self._closing = None
        if descriptor is not None:
            self._closing = weakref.finalize(self, os.close, descriptor)

    @classmethod
    def create(cls, nbytes: int, *, ready: bool = False) -> "Segment":
        """A new segment; `ready` has the kernel fetch its pages now. Raises OSError."""
        descriptor = os.memfd_create("pcp", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, HEAD_BYTES + nbytes)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_GROW)
            memory = mmap.mmap(descriptor, HEAD_BYTES + nbytes, **_UNTRACKED)
            if ready:
                _populate(memory)
        except BaseException:
            os.close(descriptor)
            raise
        nonce = secrets.token_bytes(_NONCE_BYTES)
        memory[:_NONCE_BYTES] = nonce
        return cls(memory, descriptor, nonce)

    @classmethod
    def map(
        cls,
        offer: dict[str, Any],
        least: int,
        most: int = sys.maxsize,
        *,
        writable: bool = False,
    ) -> "Segment | None":
        """The segment of an offer, of `least` to `most` bytes; None if out of reach."""
        if not all(type(offer.get(key)) is int for key in ("pid", "fd")):
            return None
        path = f"/proc/{offer['pid']}/fd/{offer['fd']}"
        mode = os.O_RDWR if writable else os.O_RDONLY
        try:
            descriptor = os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            size = os.fstat(descriptor).st_size
            if not seals & _SEALS or not least <= size - HEAD_BYTES <= most:
                raise OSError("not the memory that was offered")
            access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            memory = mmap.mmap(descriptor, size, prot=access, **_UNTRACKED)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        nonce = memory[:_NONCE_BYTES]
        return cls(memory, None, nonce) if nonce.hex() == offer.get("nonce") else None

    @property
    def offer(self) -> dict[str, Any]:
        """The values by which another process of this machine maps it; the owner's."""
        nonce = self.nonce.hex()
        return {"pid": os.getpid(), "fd": self.descriptor, "nonce": nonce}

    @property
    def token(self) -> int:
        """A number from the owner to the readers, such as one of an operation."""
        return int(self._words[_TOKEN])

    @token.setter
    def token(self, token: int) -> None:
        self._words[_TOKEN] = token

    def flat(self, count: int, dtype: np.dtype) -> NDArray:
        """The first `count` elements of the segment, as this type."""
        return self.octets[: count * dtype.itemsize].view(dtype)

    @property
    def writable(self) -> bool:
        """Whether this process may write to the segment."""
        return self.octets.flags.writeable

    def withdraw(self) -> None:
        """Stop offering the segment."""
        if self._closing is not None:
            self._closing()
            self.descriptor = None

    def close(self) -> None:
        """Stop offering the segment; it is unmapped with the last view of it."""
        self.withdraw()
        self.octets, self._words = self.octets[:0].copy(), self._words.copy()


SHARED = Placement(
    create=lambda nbytes: Segment.create(nbytes, ready=True),
    close=Segment.close,
    grain=256 << 10,
    spare=4,
    most=24,
)
"""The most shared segments: each takes file descriptors, in its readers too."""


def address(array: NDArray) -> int:
    """The address of an array's first element in this process."""
    return array.__array_interface__["data"][0]


def _populate(memory: mmap.mmap) -> None:
    """Fetch all pages now; OSError without memory.

    A page fault for every 4 KiB takes as long as moving the bytes; and memory that
    is missing when it is written to is a signal, not an error.
    """
    try:
        memory.madvise(_MADV_POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:  # an older kernel: pages come as they are used
            raise
