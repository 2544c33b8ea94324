"""Children get huge pages, and keep what they were told."""

import subprocess
import sys
from pathlib import Path

import pytest

from pcp.training.process.child_environment import child_environment
from pcp.training.process.huge_pages import VARIABLE, with_huge_pages


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({}, "glibc.malloc.hugetlb=1"),
        ({VARIABLE: ""}, "glibc.malloc.hugetlb=1"),
        ({VARIABLE: "glibc.malloc.tcache_count=1"}, None),
        ({VARIABLE: "glibc.malloc.hugetlb=0"}, "glibc.malloc.hugetlb=0"),
    ],
)
def test_what_a_child_is_told(said: dict[str, str], wanted: str | None) -> None:
    both = "glibc.malloc.tcache_count=1:glibc.malloc.hugetlb=1"
    assert with_huge_pages({"A": "b", **said}) == {"A": "b", VARIABLE: wanted or both}


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
