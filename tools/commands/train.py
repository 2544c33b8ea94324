"""`pcp train`: a whole run on this machine, from the model to the summary."""

import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import closing

from pcp.errors import RuntimeFault, UsageError
from pcp.tools.commands.node import worker_command
from pcp.tools.commands.shepherd import add_web, conclude, watched
from pcp.tools.support import hf_training, interrupts
from pcp.tools.support import training_job as jobs
from pcp.tools.support.command import Parser, port_number, run
from pcp.tools.support.detached import detached
from pcp.tools.support.protection import (
    add_protection_flags,
    protection,
    protection_arguments,
)
from pcp.tools.support.signals import on_signals
from pcp.training.coordinator.completion import Outcome
from pcp.training.observe import metrics
from pcp.training.process.node_manager import NodeManager
from pcp.training.process.supervisor import spawner
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage.run_folder import WORKER_LOG

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
    jobs.add_islands(parser)
    add("--backend", default="cpu", help=f"one of {', '.join(jobs.BACKENDS)}")
    add("--target", help="what to compile for; default by backend")
    add("--device", help="the runtime's device address for all, e.g. local-sync")
    add("--model", metavar="FILE", help="instead of the experiment's model_path")
    add("--hf", metavar="DIR", help="in its place: a folder of transformers")
    add("--task", help="of --hf; default: what the architecture says")
    add("--batch-size", type=int, metavar="B", help="with --hf: samples; default 8")
    add("--block-size", type=int, metavar="T", help="with --hf: tokens; default 128")
    add("--algorithm", metavar="SPEC", help="instead of the experiment's: ddp, ...")
    add("--port", type=port_number, default=0, help="default: any free one")
    add("--run", metavar="DIR", help="the run's folder; default: a new one")
    jobs.add_set(parser)
    add("--detach", action="store_true", help="go on without this terminal")
    add("--resume", action="store_true", help="continue the latest run, if any")
    add("--no-dashboard", action="store_true", help="plain lines in a terminal too")
    add_web(parser)
    add_protection_flags(parser)
    return parser


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    request = _requested(flags)
    experiment = jobs.read_experiment(
        flags.config,
        flags.model,
        flags.algorithm,
        jobs.with_islands(flags),
        flags.hf,
    )
    workers = experiment.workers if flags.workers is None else flags.workers
    if workers < 1:
        raise UsageError("--workers: at least one")
    if flags.islands is not None and experiment.mesh is None:
        raise UsageError("--islands: say what an island is, --mesh tp=2")
    count = workers * experiment.ranks
    target = jobs.target_here(flags.backend, flags.target)
    device = flags.device or _local_device(flags.backend, count)
    slots = range(count)
    uris = [device or jobs.device_of(flags.backend, slot) for slot in slots]
    jobs.check_compiler(experiment.model_path)
    if request is not None:
        experiment = hf_training.prepared(experiment, request)
    jobs.check_devices(uris, target, experiment.model_path)
    protected = protection(flags)
    resume = flags.resume or experiment.should_resume
    folder, _ = jobs.run_folder(experiment, resume=resume, where=flags.run)
    if flags.detach:
        return detached(folder, argv)
    screen = {"plain": flags.no_dashboard, "web": flags.web}
    with watched(experiment, folder, **screen) as observer:
        shepherd = Shepherd(
            experiment,
            folder,
            jobs.compiler_for(experiment, observer.log),
            observer,
            port=flags.port,
            workers=workers,
            protection=protected,
        )
        with closing(shepherd):
            outcome = _complete(shepherd)
            if outcome is None:
                observer.log(f"run {folder.path}, shepherd on port {shepherd.port}")
                shepherd.prepare(target)  # a bad model is told before workers start
                command = worker_command(
                    "127.0.0.1",
                    shepherd.port,
                    backend=flags.backend,
                    target=target,
                    device=device,
                    protected=protection_arguments(flags),
                )
                outcome = _supervised(shepherd, count, command)
    conclude(folder, outcome)
    if request is not None and outcome.checkpoint:
        saved = hf_training.save(experiment, request, outcome.checkpoint, folder.path)
        jobs.say(f"{'saved':<16}{saved}")
    return interrupts.exit_code(shepherd)


def _requested(flags: Namespace) -> hf_training.Request | None:
    """What --hf and its companions ask for; `UsageError` where they do not agree."""
    others = {"--task": flags.task, "--batch-size": flags.batch_size}
    others["--block-size"] = flags.block_size
    if flags.hf is None:
        if given := [name for name, value in others.items() if value is not None]:
            raise UsageError(f"{given[0]} goes with --hf")
        return None
    if flags.model:
        raise UsageError("give one model: --hf or --model")
    sizes = [flags.batch_size or 8, flags.block_size or 128]
    if min(sizes) < 1 or 0 in (flags.batch_size, flags.block_size):
        raise UsageError("--batch-size, --block-size: at least one")
    return hf_training.Request(flags.hf, flags.task, *sizes)


def _complete(shepherd: Shepherd) -> Outcome | None:
    """How a run ended that is continued, but was complete before."""
    folder, done = shepherd.folder, shepherd.committed
    rounds = shepherd.experiment.outer_loop_steps
    ended = shepherd.ledger.progress.ended and done >= rounds
    saved = shepherd.saved(done) if ended else None
    if saved is None:
        return None
    shepherd.log(
        f"the run is complete, {done} of {rounds} rounds; to go on, raise "
        "outer_loop_steps"
    )
    losses = metrics.read(folder.metrics)[1] if folder.metrics.exists() else {}
    return Outcome(done, losses.get(done), saved)


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
        spawn = spawner(stdout=output, stderr=output, process_group=0)
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
    """One thread each when there are as many CPU workers as processors.

    The runtime's task system gives every process a thread per processor; those
    of several processes would then wait for each other.
    """
    crowded = workers > 1 and workers >= (os.cpu_count() or 1)
    return "local-sync" if backend == "cpu" and crowded else None
