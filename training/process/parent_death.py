"""A process that ends with the one that started it, however that one ends.

A parent passes its process id on by `with_parent`; a child calls `die_with_parent`
first of all.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping

PARENT = "PCP_PARENT"
"""Environment variable with the process id of this one's parent."""

_PR_SET_PDEATHSIG = 1


def with_parent(values: Mapping[str, str]) -> dict[str, str]:
    """An environment that says this process is the parent."""
    return {**values, PARENT: str(os.getpid())}


def die_with_parent() -> None:
    """End this process by SIGKILL when the one that started it is gone.

    On Linux the kernel sees to it; elsewhere a thread looks twice a second. Nothing
    happens in a process that was not started `with_parent`.
    """
    parent = os.environ.pop(PARENT, None)
    if parent is None or not parent.isdecimal():
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        watch = threading.Thread(target=_watch, args=(int(parent),), daemon=True)
        watch.start()
    if os.getppid() != int(parent):  # it died before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
