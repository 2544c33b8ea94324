"""Chapter 6: DiLoCo on paper and in code.

`pcp guide check 6` runs your functions.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def mean_delta(anchor: Array, workers: Sequence[Array], tokens: Sequence[int]) -> Array:
    """The mean of anchor - parameters over the workers, weighed by their tokens."""
    # (answer
    total = sum(tokens)
    deltas = [anchor - parameters for parameters in workers]
    parts = [n / total * delta for n, delta in zip(tokens, deltas, strict=True)]
    return np.sum(parts, axis=0)
    # answer)


def outer_step(
    anchor: Array, delta: Array, velocity: Array, lr: float, momentum: float
) -> tuple[Array, Array]:
    """The next anchor and velocity, by Nesterov's momentum.

    velocity <- momentum · velocity + delta
    anchor   <- anchor - lr · (delta + momentum · velocity)
    """
    # (answer
    velocity = momentum * velocity + delta
    return anchor - lr * (delta + momentum * velocity), velocity
    # answer)


def bytes_of_a_run(model_bytes: int, steps: int, tau: int, size: int) -> float:
    """What one worker sends in `steps` inner steps of DiLoCo, by a ring all-reduce.

    `tau` inner steps are a round, and each round has one all-reduce of the model.
    """
    # (answer
    rounds = steps // tau
    return rounds * 2 * (size - 1) * model_bytes / size
    # answer)
