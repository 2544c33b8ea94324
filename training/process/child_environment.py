"""The environment of a process that pcp starts."""

import os
from collections.abc import Mapping

from pcp.training.process.huge_pages import with_huge_pages
from pcp.training.process.parent_death import with_parent


def child_environment(values: Mapping[str, str] | None = None) -> dict[str, str]:
    """`values` (this process's own by default) for a child.

    The child's heap has huge pages, and the child ends with this process if it calls
    `die_with_parent`. Start it from a thread that lives as long as the child: for Linux
    that thread is the parent.
    """
    return with_parent(with_huge_pages(os.environ if values is None else values))


def worker_environment() -> dict[str, str]:
    """This process's environment for a worker, without threads of numpy.

    IREE computes in a worker; a thread that runs before the cage closes would not be
    bound to the cage's files (`pcp.runtime.cage`).
    """
    return {"OPENBLAS_NUM_THREADS": "1", **os.environ}
