"""The cage of a process that runs foreign native code.

    held = cage.enter(readable=[data], writable=[])    # first of all
    ...                                                # listen, and so on
    cage.bar_sockets(held)                             # then load and run the code

For the whole process the cage bars other programs, other processes and ways into them
(seccomp), and all files but the system's, those of Python, of the start folder, and the
named ones (Landlock: in threads that start later). For this thread and those that start
from it, among them the device's, it bars new sockets.

docs/security.md has the limits of the cage.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from site import getsitepackages

from pcp.runtime.cage import landlock, outside, seccomp, syscalls

_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix", "/sys"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg"),
    *("/proc/sys", "/proc/driver", "/proc/filesystems", "/proc/version"),
    *("/run/systemd/resolve", "/run/nvidia-container-devices"),
)
_OF_ETC = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime"),
    *("resolv.conf", "hosts", "host.conf", "nsswitch.conf", "gai.conf", "passwd"),
    *("services", "protocols", "ssl", "pki", "ca-certificates", "mime.types"),
    *("OpenCL", "vulkan"),
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "shm", "dri", "kfd")
_OF_A_DRIVER = "nvidia*"


@dataclass(frozen=True)
class Held:
    """The parts of the cage that the kernel enforces."""

    program: bool
    """No other program or process, no ptrace, no gain of rights: on every thread."""
    files: int
    """The version of Landlock that limits the files; 0: no limit."""
    unbound: int = 0
    """Older threads, which may still open files."""
    lacks: tuple[str, ...] = ()
    """The reasons for parts that the kernel does not enforce."""

    def __str__(self) -> str:
        parts = []
        if self.program:
            parts.append("no other program (seccomp)")
        if self.files:
            but = f", but for {self.unbound} older threads" if self.unbound else ""
            parts.append(f"files by path (landlock {self.files}{but})")
        said = ", ".join(parts) or "nothing"
        return f"{said}; not {'; '.join(self.lacks)}" if self.lacks else said


def enter(*, readable: Iterable[Path] = (), writable: Iterable[Path] = ()) -> Held:
    """Close the cage around this process, as far as the kernel allows.

    `readable` and `writable` are files, or folders with all below. The cage is never
    opened again.
    """
    arch = syscalls.here() if sys.platform == "linux" else None
    if arch is None:
        return Held(False, 0, lacks=("on this system",))
    older = len(os.listdir("/proc/self/task")) - 1
    lacks = seccomp.install(arch, seccomp.of_process(arch), all_threads=True)
    if lacks is not None:
        return Held(False, 0, lacks=(lacks,))
    reads = {*_always(), *(path.resolve() for path in readable)}
    writes = {*_devices(), *(path.resolve() for path in writable)}
    if (lacks := landlock.restrict(reads, writes)) is not None:
        return Held(True, 0, lacks=(lacks,))
    return Held(True, landlock.version(), older)


def bar_sockets(held: Held) -> None:
    """Bar new sockets in this thread and those that it starts.

    `outside` makes them, in a thread that is started here.
    """
    arch = syscalls.here()
    if held.program and arch is not None:
        outside.start()
        lacks = seccomp.install(arch, seccomp.of_thread(arch))
        assert lacks is None, f"the kernel took one filter and not the next: {lacks}"


def _always() -> set[Path]:
    """The files and folders that every Python process reads."""
    python = {sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, os.getcwd()}
    found = {Path(place).resolve() for place in python if place}
    found |= {real for packages in getsitepackages() for real in _linked(packages)}
    package = find_spec("pcp")
    for own in map(Path, (package and package.submodule_search_locations) or ()):
        found |= {place.resolve() for place in own.iterdir()}  # links, in a checkout
    found = {place for place in found if place.exists() and not _holds_a_home(place)}
    etc = Path("/etc")
    return found | {Path(name) for name in _SYSTEM} | {etc / name for name in _OF_ETC}


def _linked(packages: str) -> Iterator[Path]:
    """The real folders of packages: some installers only link them."""
    for place in Path(packages).iterdir() if os.path.isdir(packages) else ():
        if place.is_symlink():
            yield place.resolve()
        for one in (place / "__init__.py", place / "METADATA"):
            if one.is_symlink():
                yield one.resolve().parent


def _holds_a_home(place: Path) -> bool:
    """Whether a folder has a user's home in it, and so maybe keys."""
    home = Path.home()
    return home == place or place in home.parents


def _devices() -> set[Path]:
    folder = Path("/dev")
    return {folder / name for name in _DEVICES} | set(folder.glob(_OF_A_DRIVER))
