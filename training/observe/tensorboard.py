"""A run's curves for TensorBoard, by the package `tensorboardX`."""

from importlib import import_module
from pathlib import Path
from typing import Any

from pcp.training.observe.figures import figures
from pcp.training.observe.metrics import Quiet
from pcp.training.storage.round_record import Round


class TensorBoard(Quiet):
    """Appends rounds and validations to event files; a step is a round.

    `behind` is the newest committed round: of a run that goes on, TensorBoard shows
    nothing later that an earlier shepherd wrote. Needs the package `tensorboardX`.
    """

    def __init__(self, folder: Path, behind: int) -> None:
        made: Any = import_module("tensorboardX")
        self._writer = made.SummaryWriter(
            str(folder), purge_step=behind + 1, flush_secs=5
        )

    def round(self, record: Round) -> None:
        """Append the round's figures."""
        for name, value in figures(record).items():
            self._writer.add_scalar(name, value, record.round, record.time)

    def validation(self, number: int, loss: float, batches: int) -> None:
        """Append the held-out loss."""
        self._writer.add_scalar("validation_loss", loss, number)

    def close(self) -> None:
        """Write what is not written yet."""
        self._writer.close()
