"""Error feedback: the rounding error of a compression is added to the next operand.

    feedback = ErrorFeedback()
    comm.all_reduce(gradient, "mean", compression="int8", feedback=feedback)

A member keeps one residual per tag, in the units of its contribution. Over
steps t, with op `sum`, results and residuals add up:

    sum_t out_t + sum_r residual_r = sum_t sum_r input_r,t

(Seide et al., "1-bit SGD", 2014; Karimireddy et al., "Error feedback fixes
SignSGD", 2019.) An operation that does not complete changes no residual.
"""

import threading
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from pcp.errors import UsageError

F32 = NDArray[np.float32]


class ErrorFeedback:
    """The residuals of one member. Safe between threads."""

    def __init__(self) -> None:
        self._residuals: dict[str, F32] = {}
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def take(self, tag: str, count: int) -> F32:
        """The residual of `count` elements for an operation that begins now.

        `settle` must follow. UsageError when the tag has an operation under
        way, or a residual of another size.
        """
        with self._lock:
            held = self._residuals.get(tag)
            if tag in self._busy:
                raise UsageError(
                    f"the error feedback of tag {tag!r} serves an operation under way; "
                    f"give every tensor a tag of its own"
                )
            if held is not None and held.size != count:
                raise UsageError(
                    f"tag {tag!r} has {held.size} residuals, not {count}; give every "
                    f"tensor a tag of its own"
                )
            self._busy.add(tag)
            return np.zeros(count, np.float32) if held is None else held

    def settle(self, tag: str, residual: F32 | None) -> None:
        """End a tag's operation: committed with this residual, or failed (None)."""
        with self._lock:
            self._busy.discard(tag)
            if residual is not None:
                self._residuals[tag] = residual

    def state(self) -> dict[str, F32]:
        """The residuals by tag: part of a checkpoint, as an optimizer's state is."""
        with self._lock:
            return {tag: held.copy() for tag, held in self._residuals.items()}

    def restore(self, state: Mapping[str, F32]) -> None:
        """Take residuals that `state` gave, in place of all present ones."""
        with self._lock:
            if self._busy:
                raise UsageError("operations with this error feedback are under way")
            self._residuals = {
                tag: np.array(held, np.float32).reshape(-1)
                for tag, held in state.items()
            }
