"""Chapter 1: why machines must agree on a sum.

`pcp guide check 1` runs your functions.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def in_order(parts: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """The sum of the members' arrays, added in the order of their ranks, in float32.

    `parts` stays as it is.
    """
    # Begin with a copy of the first one: += on parts[0] would change a member's input.
    # (answer
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total
    # answer)


def agree(results: Sequence[NDArray[np.float32]]) -> bool:
    """Whether all members hold the same bits.

    NaN is unequal to itself, and 0.0 equals -0.0: `==` does not compare bits.
    """
    # (answer
    return len({result.tobytes() for result in results}) == 1
    # answer)
