"""A run's curves for TensorBoard, by the package `tensorboardX`."""

from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

from pcp.training.observe.figures import figures
from pcp.training.observe.metrics import NullObserver
from pcp.training.storage.round_record import Round


class TensorBoard(NullObserver):
    """Appends rounds and validations to event files; a step is a round.

    `behind` is the newest committed round: TensorBoard drops later points of an earlier
    shepherd of the run. Needs the package `tensorboardX`.
    """

    def __init__(self, folder: Path, behind: int) -> None:
        self._folder, self._behind = folder, behind

    @cached_property
    def _writer(self) -> Any:
        """The writer, opened at the first point: a run without points has no files."""
        made: Any = import_module("tensorboardX")
        behind = self._behind + 1
        return made.SummaryWriter(str(self._folder), purge_step=behind, flush_secs=5)

    def round(self, record: Round) -> None:
        """Append the round's figures."""
        for name, value in figures(record).items():
            self._writer.add_scalar(name, value, record.round, record.time)

    def validation(self, number: int, loss: float, batches: int) -> None:
        """Append the held-out loss."""
        self._writer.add_scalar("validation_loss", loss, number)

    def close(self) -> None:
        """Write the last points, and close."""
        if "_writer" in vars(self):
            self._writer.close()
