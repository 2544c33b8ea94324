"""`pcp train`: a whole run on this machine, from the model to the summary."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcp.errors import RuntimeFault, UsageError
from pcp.runtime.program import threads
from pcp.runtime.transport.credentials import Protection
from pcp.tools import island_flags
from pcp.tools.commands import cage_flags
from pcp.tools.commands.node import worker_command
from pcp.tools.commands.shepherd import add_web, best_folder, conclude, watched
from pcp.tools.support import backends, hf_training, interrupts
from pcp.tools.support import training_job as jobs
from pcp.tools.support.command import Parser, port_number, run
from pcp.tools.support.detached import detached
from pcp.tools.support.lines import say
from pcp.tools.support.protection import (
    add_protection_flags,
    protection,
    protection_arguments,
)
from pcp.tools.support.signals import on_signals
from pcp.training.config.experiment import Experiment
from pcp.training.coordinator import monitor
from pcp.training.coordinator.completion import Outcome
from pcp.training.observe import metrics
from pcp.training.observe.callbacks import Callbacks
from pcp.training.process.child_environment import worker_environment
from pcp.training.process.node_manager import NodeManager
from pcp.training.process.supervisor import spawner
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage.run_folder import WORKER_LOG, RunFolder
from pcp.training.wire.channel import OPEN

PROG = "pcp train"
CONFIG = "demo.json"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Train on this machine: a shepherd, supervised workers, live "
        "progress, a summary, a loss plot and a checkpoint.",
        example="pcp train examples/demo.json --workers 2",
    )
    add = parser.add_argument
    add(
        "config",
        nargs="?",
        default=CONFIG,
        metavar="EXPERIMENT.json",
        help=f"default: {CONFIG}, as pcp init writes it",
    )
    add("--workers", type=int, help="default: the experiment's")
    island_flags.add_flags(parser)
    add("--backend", default="cpu", help=f"one of {', '.join(backends.BACKENDS)}")
    add("--target", help="what to compile for; default by backend")
    add("--device", help="the runtime's device address for all, e.g. local-sync")
    add("--model", metavar="FILE", help="instead of the experiment's model_path")
    hf_training.add_flags(parser)
    add("--algorithm", metavar="SPEC", help="instead of the experiment's: ddp, ...")
    add("--port", type=port_number, default=0, help="default: any free one")
    add("--run", metavar="DIR", help="the run's folder; default: a new one")
    jobs.add_set(parser)
    add("--detach", action="store_true", help="go on without this terminal")
    add("--resume", action="store_true", help="continue the latest run, if any")
    add("--no-dashboard", action="store_true", help="plain lines in a terminal too")
    add_web(parser)
    cage_flags.add_cage_flags(parser)
    add_protection_flags(parser)
    return parser


@dataclass(frozen=True)
class Trained:
    """A run that has ended: its folder, and how."""

    folder: Path
    outcome: Outcome

    @property
    def best(self) -> Path | None:
        """The checkpoint with the best held-out loss, if it is kept."""
        return best_folder(RunFolder(self.folder), self.outcome)


@dataclass(frozen=True)
class Place:
    """How a run lies on this machine; what is None follows from the others."""

    workers: int | None = None
    backend: str = "cpu"
    target: str | None = None
    device: str | None = None
    port: int = 0
    protection: Protection = OPEN
    protection_arguments: Sequence[str] = ()
    cage_arguments: Sequence[str] = ()


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    request = hf_training.requested(flags)
    flags.changes = island_flags.changes(flags)
    experiment = jobs.read_run(flags, flags.hf)
    jobs.check_compiler(experiment.model_path)
    experiment = jobs.planned(experiment)
    island_flags.check(flags, experiment)
    if request is not None:
        experiment = hf_training.prepared(experiment, request)
    place = Place(
        flags.workers,
        flags.backend,
        flags.target,
        flags.device,
        flags.port,
        protection(flags),
        protection_arguments(flags),
        cage_flags.cage_arguments(flags),
    )
    started = _started(experiment, place)
    resume = flags.resume or experiment.should_resume
    folder, _ = jobs.run_folder(experiment, resume=resume, where=flags.run)
    folder.keep_changes(dict(flags.changes))
    if flags.detach:
        return detached(folder, argv)
    screen = {"plain": flags.no_dashboard, "web": flags.web}
    outcome, code = started(folder, screen=screen)
    if request is not None and (saved := _saved(experiment, outcome, folder)):
        made = hf_training.save(experiment, request, saved, folder.path)
        say(f"{'saved':<16}{made}")
    return code


def train(
    experiment: Experiment,
    place: Place,
    callbacks: Sequence[Callbacks] = (),
    *,
    resume: bool = False,
    where: str | None = None,
) -> Trained:
    """Train here as the command does, without its web page."""
    jobs.check_compiler(experiment.model_path)
    experiment = jobs.planned(experiment)
    started = _started(experiment, place)
    again = resume or experiment.should_resume
    folder, _ = jobs.run_folder(experiment, resume=again, where=where)
    screen = {"plain": True, "web": None}
    outcome, _ = started(folder, screen=screen, callbacks=callbacks)
    return Trained(folder.path, outcome)


def _started(experiment: Experiment, place: Place) -> Callable[..., Any]:
    """The run, which is checked as far as it can be without a folder."""
    workers = experiment.members if place.workers is None else place.workers
    if workers < 1:
        raise UsageError("--workers: at least one")
    count = experiment.devices(workers)
    target = backends.target_here(place.backend, place.target)
    device = place.device or _local_device(place.backend, count)
    uris = [device or backends.device_of(place.backend, slot) for slot in range(count)]
    backends.check_devices(uris, target, experiment.model_path)

    def start(
        folder: RunFolder,
        screen: Mapping[str, Any],
        callbacks: Sequence[Callbacks] = (),
    ) -> tuple[Outcome, int]:
        shown = {**screen, "protected": place.protection}
        with watched(experiment, folder, callbacks, **shown) as observer:
            shepherd = Shepherd(
                experiment,
                folder,
                jobs.compiler_for(experiment, observer.log),
                observer,
                port=place.port,
                workers=workers,
                protection=place.protection,
            )
            with closing(shepherd):
                outcome = _complete(shepherd)
                if outcome is None:
                    observer.log(f"run {folder.path}, shepherd on port {shepherd.port}")
                    shepherd.prepare(target)  # a bad model is told before workers start
                    command = worker_command(
                        "127.0.0.1",
                        shepherd.port,
                        backend=place.backend,
                        target=target,
                        device=device,
                        protected=[
                            *place.protection_arguments,
                            *place.cage_arguments,
                            *cage_flags.arguments_for(experiment),
                        ],
                    )
                    outcome = _supervised(shepherd, count, command)
        conclude(folder, outcome)
        return outcome, interrupts.exit_code(shepherd)

    return start


def _saved(experiment: Experiment, outcome: Outcome, folder: RunFolder) -> str | None:
    """The checkpoint that a run leaves as a model: its best one, if it keeps that."""
    if experiment.keep_best and outcome.best is not None:
        best = best_folder(folder, outcome)
        return None if best is None else str(best)
    return outcome.checkpoint


def _complete(shepherd: Shepherd) -> Outcome | None:
    """How a run ended that is continued, but was complete before."""
    folder, done = shepherd.folder, shepherd.committed
    rounds = shepherd.experiment.outer_loop_steps
    progress = shepherd.ledger.progress
    stopped = shepherd.state.stops
    ended = progress.ended and (done >= rounds or stopped)
    saved = shepherd.saved(done) if ended else None
    if saved is None:
        return None
    key = "stop_after" if stopped else "outer_loop_steps"
    shepherd.log(
        f"the run is complete, {done} of {rounds} rounds; to go on, raise {key}"
    )
    losses = metrics.read(folder.metrics)[1] if folder.metrics.exists() else {}
    best = monitor.best(shepherd.experiment, progress.scores)
    top = None if best is None else (best, progress.scores[best])
    return Outcome(done, losses.get(done), saved, top)


def _supervised(
    shepherd: Shepherd, count: int, command: Callable[[int], Sequence[str]]
) -> Outcome:
    """Run the shepherd while its workers are kept alive.

    They are a process group of their own, which Ctrl-C in a terminal does not reach:
    the last checkpoint is made from what they hold.
    """
    with (
        open(shepherd.folder.path / WORKER_LOG, "ab") as output,
        on_signals(interrupts.saving(shepherd)),
    ):
        spawn = spawner(
            worker_environment(), stdout=output, stderr=output, process_group=0
        )
        manager = NodeManager(count, command, log=shepherd.log, spawn=spawn)
        shepherd.watch_over(lambda: _check_workers(manager, output.name))
        try:
            manager.start()
            outcome = shepherd.run()
            manager.wait(10.0)
            return outcome
        finally:
            manager.stop()


def _check_workers(manager: NodeManager, log: str) -> None:
    """All workers gave up: nobody would ever finish the run."""
    if manager.alive:
        return
    try:
        manager.result()
        raise RuntimeFault("all workers ended before the run was complete")
    except RuntimeFault as error:
        error.add_note(f"what the workers said is in {log}")
        raise


def _local_device(backend: str, workers: int) -> str | None:
    """The cores are shared by CPU workers: more threads would wait for each other."""
    return threads.shared(workers) if backend == "cpu" and workers > 1 else None
