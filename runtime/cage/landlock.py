"""Landlock: the files that this thread, and those it starts, may open from now on.

Open files stay open. libc has no functions for Landlock; three system calls are enough.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from pcp.runtime.cage.seccomp import reason

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_BENEATH = 1
_READ = 1 << 2 | 1 << 3  # files, folders
_ON_A_FILE = 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # write, read, cut, ask the device
_BY_VERSION = ((1, 0x1FFF), (2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
"""The kinds of access by the first version of Landlock that limits them."""
_SIGNALS = 1 << 1
_SCOPES_FROM = 6


def version() -> int:
    """The kernel's version of Landlock; 0 where it has none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1))


def restrict(readable: Iterable[Path], writable: Iterable[Path]) -> str | None:
    """Limit files to those at or below these paths; missing paths are left out.

    Signals are limited to the process. Call it after `no_new_privs`. Returns the
    kernel's reason if it fails.
    """
    found = version()
    if not found:
        return "landlock: not in this kernel"
    libc = ctypes.CDLL(None, use_errno=True)
    watched = sum(bits for since, bits in _BY_VERSION if found >= since)
    rules = struct.pack("=QQQ", watched, 0, _SIGNALS)
    size = 24 if found >= _SCOPES_FROM else 8  # as much as the kernel knows
    ruleset = libc.syscall(_CREATE, rules, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return f"landlock: {reason()}"
    try:
        rights = {path: _READ for path in readable} | {
            path: watched for path in writable
        }
        for path, allowed in rights.items():
            _allow(libc, ruleset, path, allowed & watched)
        if libc.syscall(_RESTRICT, ruleset, 0):
            return f"landlock: {reason()}"
    finally:
        os.close(ruleset)
    return None


def _allow(libc: ctypes.CDLL, ruleset: int, path: Path, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _ON_A_FILE
        libc.syscall(_ADD, ruleset, _BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)
