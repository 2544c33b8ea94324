"""A run as its folder has it, with or without a live shepherd."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pcp import outside, strict_json
from pcp.errors import ConfigError
from pcp.training.config.experiment import Experiment
from pcp.training.observe import journal, metrics
from pcp.training.observe.page_files import EVENTS, Programs, no_programs, page
from pcp.training.storage import ledger
from pcp.training.storage.control_file import CONTROL_FILE
from pcp.training.storage.ledger_state import Progress
from pcp.training.storage.round_record import Round
from pcp.training.storage.run_folder import RunFolder

LOCKS = Path("/proc/locks")
COMPLETE, RUNNING, STOPPED = "complete", "running", "stopped"


@dataclass(frozen=True)
class PastRun:
    """A run read from its folder; losses in nats a token."""

    folder: RunFolder
    experiment: Mapping[str, Any]
    """All keys of the run's experiment."""
    progress: Progress
    rounds: Sequence[Round]
    validations: Mapping[int, float]
    workers: Sequence[Mapping[str, Any]]
    """Every worker of the run, with its address."""
    events: Sequence[tuple[float, str]]
    checkpoint: str | None

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The run in a folder; `ConfigError` where there is none."""
        folder = RunFolder(Path(path).resolve())
        if not folder.begun:
            raise ConfigError(f"{path}: no run is there (it has no {ledger.FILE_NAME})")
        records, _ = ledger.read(folder.ledger)
        known = folder.metrics.exists()
        rounds, validations = metrics.read(folder.metrics) if known else ([], {})
        saved = [record["path"] for record in records if record["kind"] == "checkpoint"]
        return cls(
            folder=folder,
            experiment=_experiment(folder.experiment),
            progress=ledger.replayed(records).progress,
            rounds=rounds,
            validations=validations,
            workers=journal.workers(folder.workers),
            events=[*journal.events(folder.log)][-EVENTS:],
            checkpoint=saved[-1] if saved else None,
        )

    @property
    def phase(self) -> str:
        """`running` while a shepherd on this machine has its ledger."""
        if _locked(self.folder.ledger):
            return RUNNING
        return COMPLETE if self.progress.ended else STOPPED

    @property
    def started(self) -> float:
        """Unix time at which its last shepherd started; 0.0: not known."""
        control = self.folder.path / CONTROL_FILE
        return control.stat().st_mtime if control.exists() else 0.0

    @property
    def wanted_rounds(self) -> int:
        """The number of rounds of the experiment."""
        settings = self.progress.settings or self.experiment
        return int(settings.get("outer_loop_steps", self.progress.committed))

    @property
    def loss(self) -> float | None:
        """The loss of the last round."""
        return self.rounds[-1].loss if self.rounds else None

    @property
    def validation(self) -> float | None:
        """The last held-out loss."""
        return [*self.validations.values()][-1] if self.validations else None

    @property
    def seconds(self) -> float:
        """The seconds of all rounds together."""
        return sum(record.seconds for record in self.rounds)

    def changed(self) -> dict[str, Any]:
        """The experiment's keys whose values are not the defaults."""
        known = Experiment.model_fields
        return {
            key: value
            for key, value in self.experiment.items()
            if key in known and _shown(value) != _shown(known[key].get_default())
        }

    def answer(self) -> dict[str, Any]:
        """The data of the page, as a run's shepherd gives them."""
        return {
            "since": self.rounds[0].time if self.rounds else 1.0,
            "started": self.started,
            "now": time.time(),
            "after": len(self.rounds),
            "rounds": self.wanted_rounds,
            "orders": None,
            "validations": dict(self.validations),
            "events": list(self.events),
            "records": [asdict(record) for record in self.rounds],
            "experiment": {k: _shown(v) for k, v in self.changed().items()},
            "status": {
                "run": str(self.folder.path),
                "phase": self.phase,
                "round": self.progress.committed,
                "steps": self.progress.steps,
                "workers": [w for w in self.workers if "left" not in w],
                "absent": [w for w in self.workers if "left" in w],
            },
        }


def write_report(path: str | Path, programs: Programs = no_programs) -> Path:
    """Write `report.html` of the run in a folder: the page with its data inside."""
    run = PastRun.read(path)
    data = run.answer() | {"programs": dict(programs(run.folder.path))}
    run.folder.report.write_text(page("page.html", data), encoding="utf-8")
    return run.folder.report


def runs_in(parent: str | Path) -> list[PastRun]:
    """The runs in a folder, or the run that the folder is; the newest last."""
    parent = Path(parent)
    if RunFolder(parent).begun:
        return [PastRun.read(parent)]
    if not parent.is_dir():
        raise ConfigError(f"{parent}: no folder of runs is there")
    # `latest` is a link to one of the others.
    inner = [p for p in parent.iterdir() if p.is_dir() and not p.is_symlink()]
    begun = [p for p in inner if RunFolder(p).begun]
    return [PastRun.read(p) for p in sorted(begun, key=_age)]


def summary(run: PastRun) -> dict[str, Any]:
    """The summary of a run: its phase, its curve and the keys that were changed."""
    answer = run.answer()
    keys = ("round", "time", "seconds", "loss", "tokens_total", "tokens_per_second")
    return {
        "name": run.folder.name,
        "phase": run.phase,
        "round": run.progress.committed,
        "rounds": run.wanted_rounds,
        "loss": run.loss,
        "validation": run.validation,
        "tokens": run.progress.tokens,
        "seconds": run.seconds,
        "hosts": sorted({str(worker["address"]) for worker in run.workers}),
        "experiment": answer["experiment"],
        "records": [{key: r[key] for key in keys} for r in answer["records"]],
    }


def _age(folder: Path) -> tuple[float, str]:
    """The order of runs: by the time of the last write, then by name."""
    return RunFolder(folder).ledger.stat().st_mtime, folder.name


def _experiment(path: Path) -> dict[str, Any]:
    """The keys of a run's experiment; none without its file."""
    if not path.exists():
        return {}
    values = outside.read_object(path)
    defaults = {k: f.get_default() for k, f in Experiment.model_fields.items()}
    return defaults | values


def _shown(value: object) -> str:
    return value if isinstance(value, str) else strict_json.dumps(value, default=str)


def _locked(path: Path) -> bool:
    """Whether a process of this machine has a file locked.

    The kernel's list of locks is read, since trying the lock could keep a shepherd from
    it.
    """
    if not LOCKS.exists():
        return False
    inode = f":{path.stat().st_ino} "
    lines = LOCKS.read_text().splitlines()
    return any("FLOCK" in line and inode in line for line in lines)
