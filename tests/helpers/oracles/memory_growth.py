"""How much memory a piece of a test takes."""

import ctypes
import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def resident() -> int:
    """This process's memory in bytes, as the system sees it.

    Without what is free already and the allocator keeps: with many threads that is a
    GiB after 100,000 frames.
    """
    gc.collect()
    with suppress(AttributeError):  # not of glibc
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@contextmanager
def traced(peak: int, kept: int) -> Iterator[dict[str, int]]:
    """Within, at most `peak` bytes may be allocated at once, `kept` at the end."""
    used: dict[str, int] = {}
    gc.collect()
    tracemalloc.start()
    try:
        yield used
        used["peak"] = tracemalloc.get_traced_memory()[1]
        gc.collect()
        used["kept"] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used["peak"] < peak, used
    assert used["kept"] < kept, used


@contextmanager
def resident_growth(limit: int) -> Iterator[None]:
    """Within, the process may grow by so many bytes."""
    before = resident()
    yield
    assert resident() - before < limit, f"{resident() - before} bytes more"
