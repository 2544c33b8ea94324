"""Seccomp: filters of system calls, as programs of the kernel's packet filter.

A refused call returns EPERM, as if the process lacked the right, so its caller reports
it in its own words. A filter is permanent, and threads inherit it.
"""

import ctypes
import errno
import struct
from collections.abc import Iterable

from pcp.runtime.cage.syscalls import LAST_KNOWN, Architecture

_LOAD, _EQUAL, _AT_LEAST, _ABOVE, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x25, 0x45, 0x06
_NUMBER, _AUDIT, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets in a filter's data: call, architecture, low halves of two arguments."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_THREAD = 0x00010000  # CLONE_THREAD
_TERMINAL = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: type what the user will find typed
_SET_FILTER, _ALL_THREADS, _NO_NEW_PRIVS = 1, 1, 38

Instruction = tuple[int, int, int, int]
"""Code, how far to jump if true and if false, operand."""


def _refuse(number: int, why: int = errno.EPERM) -> list[Instruction]:
    return [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | why)]


def _head(arch: Architecture) -> list[Instruction]:
    """Refuse calls of another architecture; load the number of the call."""
    program = [
        (_LOAD, 0, 0, _AUDIT),
        (_EQUAL, 1, 0, arch.audit),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if arch.foreign is not None:
        refused = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
        program += [(_AT_LEAST, 0, 1, arch.foreign), refused]
    return program


def of_process(arch: Architecture) -> list[Instruction]:
    """The filter of the process: no other program or process, no way around it."""
    program = _head(arch)
    program += [(_ABOVE, 0, 1, LAST_KNOWN), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    # The flags of clone3 are in memory, which a filter cannot read; libc then uses
    # clone.
    program += _refuse(arch.clone3, errno.ENOSYS)
    for number in arch.denied.values():
        program += _refuse(number)
    program += [
        (_EQUAL, 0, 4, arch.clone),
        (_LOAD, 0, 0, _FIRST),
        (_ANY_BIT, 0, 1, _THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_EQUAL, 0, 4, arch.ioctl),
        (_LOAD, 0, 0, _SECOND),
        (_EQUAL, 1, 0, _TERMINAL[0]),
        (_EQUAL, 0, 1, _TERMINAL[1]),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return program


def of_thread(arch: Architecture) -> list[Instruction]:
    """The filter of a thread: no new socket."""
    program = _head(arch)
    for number in arch.sockets.values():
        program += _refuse(number)
    return [*program, (_RETURN, 0, 0, _ALLOW)]


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install(
    arch: Architecture, program: Iterable[Instruction], *, all_threads: bool = False
) -> str | None:
    """Filter this thread, and those it starts, or all there are.

    Returns the kernel's reason if it fails; the process can gain no rights from then
    on.
    """
    packed = b"".join(struct.pack("=HBBI", *one) for one in program)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        return f"no_new_privs: {reason()}"
    passed = _Program(len(packed) // 8, packed)
    flags = _ALL_THREADS if all_threads else 0
    if libc.syscall(arch.seccomp, _SET_FILTER, flags, ctypes.byref(passed)):
        return f"seccomp: {reason()}"
    return None


def reason() -> str:
    """The name of the error of the last system call."""
    return errno.errorcode.get(ctypes.get_errno(), "refused")
