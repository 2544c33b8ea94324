"""Weights & Biases, for users with a key."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pcp.errors import MissingPackage, install
from pcp.training.config.experiment import Experiment
from pcp.training.observe.figures import figures
from pcp.training.observe.metrics import NullObserver
from pcp.training.storage.round_record import Round
from pcp.training.storage.run_folder import SECRETS


class WandbRun(NullObserver):
    """Logs rounds and validations to W&B. Needs the package `wandb`."""

    def __init__(self, experiment: Experiment, key: str, run: str) -> None:
        try:
            wandb: Any = import_module("wandb")
        except ImportError as error:
            raise MissingPackage(
                "a W&B key is set, but the package is missing: "
                f"{install('wandb')}, or unset the key"
            ) from error
        wandb.login(key=key)
        self._run: Any = wandb.init(
            project=experiment.wandb_project,
            entity=experiment.wandb_entity,
            name=experiment.wandb_run_name or run,
            id=run,
            resume="allow",
            config=experiment.model_dump(exclude=SECRETS),
        )

    def round(self, record: Round) -> None:
        """Log loss, workers, speed and bytes of a round."""
        values = figures(record) | {"outer_step": record.round}
        self._log(record.round, values)

    def validation(self, number: int, loss: float, batches: int) -> None:
        """Log the held-out loss."""
        self._log(number, {"validation_loss": loss})

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        self._run.log(dict(values), step=step)
