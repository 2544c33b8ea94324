"""Where the worker's own thread is, for the heartbeats that another thread sends."""

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
    """Written by one thread, read by another: each value in one assignment."""

    def __init__(self) -> None:
        self._at: tuple[Call, float] = ("waiting", time.monotonic())
        self._steps = 0

    def enter(self, call: Call) -> None:
        """The thread begins this."""
        self._at = (call, time.monotonic())

    def stepped(self) -> None:
        """An inner step is made, or a held-out batch evaluated."""
        self._steps += 1

    def said(self, waits: float | None = None) -> Whereabouts:
        """For a heartbeat; `waits` is for how long it waits in an exchange, if so."""
        call, began = self._at
        since = time.monotonic() - began
        if waits is not None:
            call, since = "exchange", waits
        return Whereabouts(call=call, steps=self._steps, since=max(0.0, since))
