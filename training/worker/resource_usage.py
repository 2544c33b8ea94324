"""The resources that a process uses: processor time and memory."""

import resource
import sys
import time
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Memory this process holds now; its peak, where the system says only that."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class ProcessorTime:
    """Seconds of processor time between one reading and the next, over all threads."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def lap(self) -> float:
        """Seconds since the last call."""
        now = time.process_time()
        spent, self._last = now - self._last, now
        return spent
