"""Numbers of the system calls that a caged process does not need.

Numbers from 424 on are the same on all processors.
"""

import platform
from dataclasses import dataclass

_COMMON = {
    "io_uring_setup": 425,  # calls through a ring bypass filters
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "fchmodat2": 452,
}

LAST_KNOWN = 453
"""Newer calls are answered as by a kernel that lacks them."""

_X86_64 = {
    "execve": 59,
    "execveat": 322,
    "fork": 57,
    "vfork": 58,
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "bpf": 321,
    "userfaultfd": 323,
    "perf_event_open": 298,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    "unshare": 272,
    "setns": 308,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "reboot": 169,
    "swapon": 167,
    "swapoff": 168,
    "acct": 163,
    "quotactl": 179,
    "syslog": 103,
    "personality": 135,
    "fanotify_init": 300,
    "settimeofday": 164,
    "clock_settime": 227,
    "adjtimex": 159,
    "clock_adjtime": 305,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "modify_ldt": 154,
    "chmod": 90,
    "fchmodat": 268,
    "chown": 92,
    "lchown": 94,
    "fchownat": 260,
    "setxattr": 188,
    "lsetxattr": 189,
    "mknod": 133,
    "mknodat": 259,
}
_AARCH64 = {
    "execve": 221,
    "execveat": 281,
    "ptrace": 117,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "bpf": 280,
    "userfaultfd": 282,
    "perf_event_open": 241,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "mount": 40,
    "umount2": 39,
    "pivot_root": 41,
    "chroot": 51,
    "unshare": 97,
    "setns": 268,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "init_module": 105,
    "finit_module": 273,
    "delete_module": 106,
    "kexec_load": 104,
    "kexec_file_load": 294,
    "reboot": 142,
    "swapon": 224,
    "swapoff": 225,
    "acct": 89,
    "quotactl": 60,
    "syslog": 116,
    "personality": 92,
    "fanotify_init": 262,
    "settimeofday": 170,
    "clock_settime": 112,
    "adjtimex": 171,
    "clock_adjtime": 266,
    "sethostname": 161,
    "setdomainname": 162,
    "fchmodat": 53,
    "fchownat": 54,
    "setxattr": 5,
    "lsetxattr": 6,
    "mknodat": 33,
}


@dataclass(frozen=True)
class Architecture:
    """The numbers of an architecture."""

    audit: int
    """Its number in a filter's data (AUDIT_ARCH_...)."""
    seccomp: int
    clone: int
    clone3: int
    ioctl: int
    denied: dict[str, int]
    """Calls that no thread of training needs, by name."""
    sockets: dict[str, int]
    """Calls that make or await a connection, by name."""
    foreign: int | None = None
    """Numbers from here on are of the x32 interface."""


ARCHITECTURES = {
    "x86_64": Architecture(
        audit=0xC000003E,
        seccomp=317,
        clone=56,
        clone3=435,
        ioctl=16,
        denied=_X86_64 | _COMMON,
        sockets={"socket": 41, "connect": 42, "bind": 49, "listen": 50},
        foreign=0x40000000,
    ),
    "aarch64": Architecture(
        audit=0xC00000B7,
        seccomp=277,
        clone=220,
        clone3=435,
        ioctl=29,
        denied=_AARCH64 | _COMMON,
        sockets={"socket": 198, "connect": 203, "bind": 200, "listen": 201},
    ),
}


def here() -> Architecture | None:
    """The numbers of this processor; None where they are not known."""
    return ARCHITECTURES.get(platform.machine())
