"""Chapter 2: a ring all-reduce by hand.

`pcp guide check 2` runs your functions. An array is cut into as many chunks as there
are members; chunk numbers and ranks count from 0 and wrap around.
"""


def chunk_to_send(rank: int, step: int, size: int) -> int:
    """The chunk that a member passes on in a step of the first half (reduce-scatter).

    In step 0 member r sends chunk r; later it sends the chunk that it has just added
    to, which is one less each step.
    """
    # (answer
    return (rank - step) % size
    # answer)


def chunk_finished(rank: int, size: int) -> int:
    """The chunk that is a whole sum on this member after size - 1 steps."""
    # (answer
    return (rank + 1) % size
    # answer)


def bytes_sent(array_bytes: int, size: int) -> float:
    """What one member sends in the whole all-reduce: both halves, size - 1 steps each.

    Every chunk has array_bytes / size bytes.
    """
    # (answer
    return 2 * (size - 1) * array_bytes / size
    # answer)
