"""Callbacks: a run's events for a user's own Python code."""

from pathlib import Path

from pcp.training.observe.metrics import NullObserver
from pcp.training.storage.round_record import Round


class Callbacks:
    """Base of callbacks; a subclass defines those that it needs.

    The shepherd's thread makes the calls one after the other, each after the ledger has
    the line of its event. The run waits for them. An exception ends the run, which
    `resume` continues.
    """

    def on_round(self, record: Round) -> None:
        """A round was committed: its loss, tokens, times and members."""

    def on_validate(self, round: int, loss: float) -> None:
        """The held-out loss after a round."""

    def on_checkpoint(self, round: int, path: Path) -> None:
        """The state after a round is on the disk, in the folder `path`."""


class CallbackObserver(NullObserver):
    """The observer that calls callbacks."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks

    def round(self, record: Round) -> None:
        """A round was committed."""
        self._callbacks.on_round(record)

    def validation(self, number: int, loss: float, batches: int) -> None:
        """The held-out loss after a round."""
        self._callbacks.on_validate(number, loss)

    def checkpoint(self, number: int, path: str) -> None:
        """The state after a round is on the disk."""
        self._callbacks.on_checkpoint(number, Path(path))
