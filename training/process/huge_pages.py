"""Huge pages for the heap of a process that is about to be started.

A step takes its temporary memory in one block and gives it back. With pages of 4 KiB
the kernel clears that block page by page in each step: a third of the processor time of
a GPT of width 256 on two threads. glibc asks for huge pages if it is told when it
starts; other C libraries do not look.
"""

from collections.abc import Mapping

VARIABLE = "GLIBC_TUNABLES"
_TUNABLE = "glibc.malloc.hugetlb"


def with_huge_pages(values: Mapping[str, str]) -> dict[str, str]:
    """An environment whose heap has huge pages, unless it says what it has."""
    said = values.get(VARIABLE, "")
    if _TUNABLE in said:
        return dict(values)
    return {**values, VARIABLE: ":".join(filter(None, (said, f"{_TUNABLE}=1")))}
