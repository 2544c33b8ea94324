"""The processor time and the memory of this process."""

import resource
import sys
import time
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Resident bytes of this process; their peak, where the system says only that."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class ProcessorTime:
    """Seconds of processor time of all threads between two readings."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def lap(self) -> float:
        """Seconds since the last call."""
        now = time.process_time()
        spent, self._last = now - self._last, now
        return spent
