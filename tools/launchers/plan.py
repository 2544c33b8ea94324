"""What is to be launched, whatever launches it."""

import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Self

from pcp.errors import UsageError
from pcp.tools.support import backends
from pcp.tools.support import training_job as jobs
from pcp.tools.support.protection import arguments_of, protection_files
from pcp.training.config.experiment import Experiment

#: Backends whose devices schedulers count as GPUs.
GPU_BACKENDS = {"cuda", "rocm"}

SHEPHERD_HOST = "0.0.0.0"
"""Where a shepherd listens whose workers are on machines that are not known yet."""


@dataclass(frozen=True)
class LaunchPlan:
    """One run: the experiment, and the workers it wants."""

    config: Path
    experiment: Experiment
    name: str
    """Fit for a job, a service and a folder: lower-case letters, digits, dashes."""
    workers: int
    backend: str
    target: str | None
    run: Path
    """The run's folder; a launch that finds a run there continues it."""
    protected: Mapping[str, PurePath] = field(default_factory=dict)
    """Flag -> file, for all its commands: who may take part."""

    @classmethod
    def of(cls, flags: Namespace) -> Self:
        """The plan that a command line asks for."""
        backends.check_backend(flags.backend)
        experiment = jobs.read_experiment(flags.config)
        workers = experiment.members if flags.workers is None else flags.workers
        if workers < 1:
            raise UsageError("--workers: at least one")
        if (experiment.shapes or experiment.cluster) and flags.on != "local":
            raise UsageError(
                f"--on {flags.on}: one process is started a worker there, and an "
                "island has several; take --on local, or start pcp shepherd, and "
                "pcp node --scale with the ranks of all islands, yourself"
            )
        config = Path(flags.config).absolute()
        name = flags.name or job_name(config.stem)
        if name != job_name(name):
            raise UsageError(
                f"--name {name}: lower-case letters, digits and dashes, at most 40"
            )
        run = flags.run or f"{experiment.checkpoint_dir}/{name}"
        return cls(
            config=config,
            experiment=experiment,
            name=name,
            workers=workers,
            backend=flags.backend,
            target=flags.target,
            run=Path(run).absolute(),
            protected=protection_files(flags),
        )

    @property
    def gpus(self) -> bool:
        """Whether each worker needs a GPU."""
        return self.backend in GPU_BACKENDS

    def shepherd_arguments(self, config: str, run: str, port: int) -> list[str]:
        """`pcp shepherd` that listens on all addresses and continues what is there.

        That nothing protects it was said, or the engine sees to it.
        """
        return [
            *("shepherd", "--config", config, "--run", run, "--resume"),
            *("--host", SHEPHERD_HOST, "--port", str(port)),
            *([] if self.protected else ["--insecure"]),
            *("--workers", str(self.workers), "--no-dashboard"),
            *arguments_of(self.protected),
        ]

    def device_arguments(self) -> list[str]:
        """The flags that workers and node managers share."""
        target = ["--target", self.target] if self.target else []
        protected = arguments_of(self.protected)
        return ["--backend", self.backend, *target, *protected]


def job_name(text: str) -> str:
    """`text` as a name of RFC 1123: what Kubernetes, Slurm and hosts take."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    return plain or "run"
