"""The folder of a run, and the files in it.

<checkpoint_dir>/
  latest                 a link to the newest run
  run_20261121-031500/
    experiment.json      the run's experiment, without the API key
    changes.json         the keys that --set gave when it began
    ledger.jsonl         the ledger (`pcp.training.storage.ledger`)
    metrics.jsonl        a line a round (`pcp.training.observe.metrics`)
    loss.png             the plot
    shepherd.log         the log of the shepherd, with dates
    shepherd.jsonl       the same, an object a line: time and text
    workers.jsonl        a line when a worker comes or leaves, with its address
    report.html          the run's page with its data, when it has ended
    control.json         the shepherd's address (`coordinator.operator_control`)
    workers.log          the log of the workers of `pcp train`
    programs/            the bundles of the workers, one for each target
    checkpoints/         (`pcp.training.storage.checkpoint`)
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pcp import outside, strict_json, whole_file
from pcp.errors import ConfigError
from pcp.training.config.experiment import SECRETS, Experiment
from pcp.training.storage import ledger
from pcp.training.storage.control_file import CONTROL_FILE

LATEST = "latest"
METRICS = "metrics.jsonl"
WORKER_LOG = "workers.log"


@dataclass(frozen=True)
class RunFolder:
    """One run's folder; it exists."""

    path: Path
    fresh: bool = field(default=False, compare=False)
    """Whether this process made it."""

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self.path / ledger.FILE_NAME

    @property
    def begun(self) -> bool:
        """Whether its ledger has a first line."""
        return self.ledger.exists() and self.ledger.stat().st_size > 0

    @property
    def experiment(self) -> Path:
        """The file of the run's experiment."""
        return self.path / "experiment.json"

    @property
    def changed(self) -> Path:
        """The file of the keys that --set gave."""
        return self.path / "changes.json"

    @property
    def metrics(self) -> Path:
        """The metrics' file."""
        return self.path / METRICS

    @property
    def plot(self) -> Path:
        """The plot's file."""
        return self.path / "loss.png"

    @property
    def log(self) -> Path:
        """The log of the shepherd (`pcp.training.observe.journal`)."""
        return self.path / "shepherd.log"

    @property
    def json_log(self) -> Path:
        """The same log as JSON."""
        return self.path / "shepherd.jsonl"

    @property
    def workers(self) -> Path:
        """The file of the workers that the run had."""
        return self.path / "workers.jsonl"

    @property
    def tensorboard(self) -> Path:
        """The folder of event files for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def programs(self) -> Path:
        """The folder of the bundles."""
        return self.path / "programs"

    @property
    def bundles(self) -> list[Path]:
        """The bundles in that folder."""
        return sorted(self.programs.glob("*.pcp"))

    def keep_program(self, target: str, content: bytes) -> None:
        """Keep the bundle for a target."""
        self.programs.mkdir(exist_ok=True)
        name = re.sub(r"[^\w.+-]", "-", target)
        _replace(self.programs / f"{name}.pcp", content)

    @property
    def report(self) -> Path:
        """The page of a run that has ended."""
        return self.path / "report.html"

    @classmethod
    def create(cls, experiment: Experiment, now: datetime) -> Self:
        """A new run under `checkpoint_dir`."""
        parent = Path(experiment.checkpoint_dir)
        stem = now.strftime("run_%Y%m%d-%H%M%S")
        for number in range(1000):
            path = parent / (f"{stem}.{number}" if number else stem)
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError:
                continue
            except OSError as error:
                raise ConfigError(
                    f"checkpoint_dir: cannot make {path}: {error.strerror}"
                ) from error
        else:
            raise ConfigError(f"checkpoint_dir: a thousand runs called {stem}")
        return replace(cls.at(path, experiment), fresh=True)

    @classmethod
    def at(cls, path: str | Path, experiment: Experiment) -> Self:
        """The run in `path`, new or not."""
        folder = cls(Path(path), fresh=not Path(path).exists())
        folder.path.mkdir(parents=True, exist_ok=True)
        if not folder.experiment.exists():
            folder.note(experiment)
        return folder

    def note(self, experiment: Experiment) -> None:
        """Keep an experiment as the run's; the API key is left out."""
        text = strict_json.dumps(experiment.model_dump(exclude=SECRETS), indent=1)
        _replace(self.experiment, text)

    def changes(self) -> dict[str, Any]:
        """Keys and values that --set gave when the run began, or later."""
        if not self.changed.exists():
            return {}
        return outside.read_object(self.changed)

    def keep_changes(self, given: Mapping[str, Any]) -> None:
        """Keep the keys that --set gives now, over earlier ones; no secrets."""
        kept = {key: one for key, one in given.items() if key not in SECRETS}
        if kept:
            _replace(self.changed, strict_json.dumps(self.changes() | kept, indent=1))

    def discard(self) -> None:
        """Remove a fresh folder in which no run has begun."""
        if not self.fresh or self.begun:
            return
        ours = (self.ledger, self.path / CONTROL_FILE, self.path / WORKER_LOG)
        logs = (self.log, self.json_log, self.workers)
        written = (self.experiment, self.changed, self.metrics, *logs)
        for path in (*written, *ours, *self.bundles):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.programs.rmdir()
        with suppress(OSError):  # another process put a file there
            self.path.rmdir()

    def make_latest(self) -> None:
        """Make this run the one that `--resume` continues."""
        link = self.path.parent / LATEST
        hidden = link.with_name(f".{LATEST}.{os.getpid()}")
        hidden.unlink(missing_ok=True)
        hidden.symlink_to(self.name)
        os.replace(hidden, link)

    @classmethod
    def latest(cls, experiment: Experiment) -> Self | None:
        """The run under `checkpoint_dir` that began last, if there is one."""
        parent = Path(experiment.checkpoint_dir)
        try:
            name = os.readlink(parent / LATEST)
        except OSError:
            return None
        folder = cls(parent / name)
        return folder if name and folder.ledger.exists() else None


def _replace(path: Path, content: str | bytes) -> None:
    with whole_file.replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
