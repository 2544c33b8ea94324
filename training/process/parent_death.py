"""A child process that ends with its parent, however the parent ends.

A parent passes its process id by `with_parent`; a child calls `die_with_parent` first.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping

PARENT = "PCP_PARENT"
"""The environment variable with the process id of the parent."""

_PR_SET_PDEATHSIG = 1


def with_parent(values: Mapping[str, str]) -> dict[str, str]:
    """An environment with the id of this process as the parent's."""
    return {**values, PARENT: str(os.getpid())}


def die_with_parent() -> None:
    """End this process by SIGKILL when its parent has ended.

    On Linux the kernel sends the signal; elsewhere a thread checks twice a second. In a
    process that was not started `with_parent` the call does nothing.
    """
    parent = os.environ.pop(PARENT, None)
    if parent is None or not parent.isdecimal():
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        watch = threading.Thread(target=_watch, args=(int(parent),), daemon=True)
        watch.start()
    if os.getppid() != int(parent):  # it ended before prctl
        os.kill(os.getpid(), signal.SIGKILL)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
