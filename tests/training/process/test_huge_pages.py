"""Children get huge pages, keep their memory, and keep what they were told."""

import subprocess
import sys
from pathlib import Path

import pytest

from pcp.training.process.child_environment import child_environment
from pcp.training.process.huge_pages import VARIABLE, with_huge_pages

_KEPT = (
    "glibc.malloc.arena_max=1:glibc.malloc.mmap_max=0:"
    "glibc.malloc.trim_threshold=1099511627776"
)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, f"glibc.malloc.hugetlb=1:{_KEPT}"),
        ({VARIABLE: ""}, f"glibc.malloc.hugetlb=1:{_KEPT}"),
        (
            {VARIABLE: "glibc.malloc.tcache_count=1"},
            f"glibc.malloc.tcache_count=1:glibc.malloc.hugetlb=1:{_KEPT}",
        ),
        (
            {VARIABLE: "glibc.malloc.hugetlb=0"},
            f"glibc.malloc.hugetlb=0:{_KEPT}",
        ),
    ],
)
def test_what_a_child_is_told(said: dict[str, str], wanted: str) -> None:
    assert with_huge_pages({"A": "b", **said}) == {"A": "b", VARIABLE: wanted}


def test_a_child_that_ends_with_us_has_them() -> None:
    assert "hugetlb=1" in child_environment({})[VARIABLE]


_BLOCK = """
import numpy as np
block = np.empty(64 << 20, np.uint8)
block[:] = 1
size = 0
for line in open("/proc/self/smaps_rollup"):
    if line.startswith("AnonHugePages:"):
        size = int(line.split()[1])
print(size)
"""
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not _SETTING.exists() or "[madvise]" not in _SETTING.read_text(),
    reason="the kernel gives huge pages to none, or to all",
)
def test_glibc_listens() -> None:
    huge = []
    for tunable in ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=1"):
        run = subprocess.run(
            [sys.executable, "-c", _BLOCK],
            env=with_huge_pages({VARIABLE: tunable}),
            capture_output=True,
            text=True,
            check=True,
        )
        huge.append(int(run.stdout))
    assert huge[1] > huge[0]


_AGAIN = """
import resource, threading
import numpy as np

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(64 << 20, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def run():
    faults()
    print(faults())

thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's tunables")
def test_a_thread_gets_the_memory_again_that_it_gave_back() -> None:
    """A step's temporary memory: no page of it is cleared twice."""
    small = "glibc.malloc.hugetlb=0"
    counted = []
    for values in ({VARIABLE: small}, with_huge_pages({VARIABLE: small})):
        run = subprocess.run(
            [sys.executable, "-c", _AGAIN],
            env={**values, "NUMPY_MADVISE_HUGEPAGE": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
        counted.append(int(run.stdout))
    taken, kept = counted
    assert taken > 1000
    assert kept < 100
