"""With how many threads a program runs on this machine's processor.

    local        a thread for each core that the process may use
    local://2    two at most, where other processes compute beside this one

A program whose largest call is small runs without IREE's task system: waking threads
for its kernels would take longer than the kernels. Results have the same bits with any
number of threads. `local-task`, `local-task://2` and `local-sync` are IREE's own
devices, for who wants one of them whatever the program is.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from pcp.bundle import Function
from pcp.errors import ConfigError

LOCAL = "local"
ONE_THREAD, TASKS = "local-sync", "local-task"

LEAST_WORK = 1 << 28
"""Operations of a call, `Function.work`, from which threads gain: to wake them for each
kernel of a smaller one takes a good part of its time."""

_SIBLINGS = Path("/sys/devices/system/cpu")


def is_local(uri: str) -> bool:
    """Whether a device is this machine's processor: no driver with files of its own."""
    return uri.partition("://")[0] in (LOCAL, ONE_THREAD, TASKS)


def shared(processes: int) -> str:
    """The device of each of so many processes that compute here at once."""
    return LOCAL if processes == 1 else f"{LOCAL}://{max(1, cores() // processes)}"


def device_for(uri: str, functions: Iterable[Function]) -> str:
    """IREE's device for a program with these functions; other addresses stay."""
    if uri.partition("://")[0] != LOCAL:
        return uri
    count = min(asked(uri) or cores(), cores())
    if count == 1 or is_small(functions):
        return ONE_THREAD
    return TASKS if count == cores() else f"{TASKS}://{count}"


def is_small(functions: Iterable[Function]) -> bool:
    """Whether their largest call is known to gain nothing by threads."""
    return 0 < max((f.work for f in functions), default=0) < LEAST_WORK


def asked(uri: str) -> int:
    """The threads that an address says, 0 where it says none."""
    _, _, said = uri.partition("://")
    if not said:
        return 0
    if not said.isdecimal() or int(said) < 1:
        raise ConfigError(
            f"device {uri!r}: say a number of threads behind ://, or none"
        )
    return int(said)


def cores(siblings: Path = _SIBLINGS) -> int:
    """The cores that this process may use, one for the threads of each."""
    numbers = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if numbers is None:
        return os.cpu_count() or 1
    return len({_core(siblings, number) for number in numbers}) or 1


def _core(siblings: Path, number: int) -> str:
    try:
        place = siblings / f"cpu{number}" / "topology" / "thread_siblings_list"
        return place.read_text().strip()
    except OSError:
        return str(number)
