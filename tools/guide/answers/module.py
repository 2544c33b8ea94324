"""Chapter 9: put the sum inside the module.

`pcp guide check 9` runs your functions.
"""

from collections.abc import Sequence


def buckets(sizes: Sequence[int], limit: int) -> list[list[int]]:
    """Which tensors are summed together, in order, by their numbers in `sizes`.

    A bucket is a run of neighbours with at most `limit` bytes in all; a tensor that is
    larger than that has a bucket of its own. As few buckets as that allows.
    """
    # (answer
    found: list[list[int]] = []
    held = 0
    for number, size in enumerate(sizes):
        if not found or held + size > limit:
            found.append([])
            held = 0
        found[-1].append(number)
        held += size
    return found
    # answer)


def seconds(compute: float, exchange: float, overlapped: float) -> float:
    """How long a step takes when a share of its exchange (0 to 1) runs beside it.

    `compute` and `exchange` are seconds. What runs beside the computation costs nothing
    unless it takes longer than the computation does.
    """
    # (answer
    beside = exchange * overlapped
    return max(compute, beside) + exchange - beside
    # answer)
