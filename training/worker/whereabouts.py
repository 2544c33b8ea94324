"""The whereabouts of a worker's own thread, for the heartbeats of another thread."""

import time
from typing import Literal

from pcp.training.wire.messages import (
    Whereabouts,
)

Call = Literal[
    "waiting", "loading", "restoring", "forming", "data", "step", "exchange",
    "validating",
]  # fmt: skip


class Place:
    """The call that a thread is in.

    One thread writes, another reads: each value is one assignment.
    """

    def __init__(self) -> None:
        self._at: tuple[Call, float] = ("waiting", time.monotonic())
        self._steps = 0

    def enter(self, call: Call) -> None:
        """The thread begins a call."""
        self._at = (call, time.monotonic())

    def stepped(self) -> None:
        """Count an inner step, or an evaluated held-out batch."""
        self._steps += 1

    def said(self, waits: float | None = None) -> Whereabouts:
        """For a heartbeat; `waits` is for how many seconds it waits in an exchange."""
        call, began = self._at
        since = time.monotonic() - began
        if waits is not None:
            call, since = "exchange", waits
        return Whereabouts(call=call, steps=self._steps, since=max(0.0, since))
