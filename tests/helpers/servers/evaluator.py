"""What runs the programs that an oracle compares."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike


class Evaluator(Protocol):
    """The reference interpreter, IREE, or one of them behind some passes."""

    def run(self, text: str, arguments: Sequence[ArrayLike]) -> list[np.ndarray]:
        """The results of `@main` in `text`."""
        ...
