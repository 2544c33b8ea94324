"""Chapter 8: partition a matrix product.

`pcp guide check 8` runs your functions.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def part(size: int, rank: int, members: int) -> slice:
    """The part of a dimension that a member holds: all parts together are all of it.

    Where the members do not divide it, the first ones have one more: 5 over 2 is 3 + 2.
    """
    # (answer
    share, more = divmod(size, members)
    begin = rank * share + min(rank, more)
    return slice(begin, begin + share + (rank < more))
    # answer)


def columns(x: Array, w: Array, rank: int, members: int) -> Array:
    """The member's columns of x @ w, made of its columns of w: no bytes move."""
    # (answer
    return x @ w[:, part(w.shape[1], rank, members)]
    # answer)


def partial_sum(x: Array, w: Array, rank: int, members: int) -> Array:
    """A whole-sized product of the member's columns of x and its rows of w.

    The dimension that is summed over is cut: an all-reduce of these is x @ w.
    """
    # (answer
    inner = part(w.shape[0], rank, members)
    return x[:, inner] @ w[inner]
    # answer)
