"""`pcp shepherd`: coordinate a run whose workers come from anywhere."""

import os
import sys
from collections.abc import Sequence

from pcp.tools import training_job as jobs
from pcp.tools.command import Parser, run
from pcp.training.dashboard import Dashboard, PlainLog
from pcp.training.metrics import Fanout, MetricsFile, Observer, read
from pcp.training.run_folder import RunFolder
from pcp.training.shepherd import Outcome, Shepherd

PROG = "pcp shepherd"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Coordinate a training run.",
        example="pcp shepherd --config experiment.json --host 0.0.0.0 --workers 8",
    )
    add = parser.add_argument
    add("--config", required=True, metavar="FILE", help="the experiment (JSON)")
    add("--host", default="127.0.0.1", help="address to listen on; default 127.0.0.1")
    add("--port", type=int, default=8080, help="default 8080; 0: any free one")
    add("--workers", type=int, help="workers to wait for; default: the experiment's")
    add("--model", metavar="FILE", help="instead of the experiment's model_path")
    add("--resume", action="store_true", help="continue the latest run, if any")
    add("--run", metavar="DIR", help="the run's folder; default: a new one")
    add("--no-dashboard", action="store_true", help="plain lines in a terminal too")
    add("--terminate", action="store_true", help="accepted; a finished run always ends")
    return parser


def _main(argv: Sequence[str]) -> None:
    jobs.die_with_supervisor()
    flags = parser().parse_args(argv)
    experiment = jobs.read_experiment(flags.config, flags.model)
    resume = flags.resume or experiment.should_resume
    folder, known = jobs.run_folder(experiment, resume=resume, where=flags.run)
    observer = watch(experiment, folder, plain=flags.no_dashboard)
    try:
        shepherd = Shepherd(
            experiment,
            folder,
            jobs.compiler_for(experiment, observer.log),
            observer,
            host=flags.host,
            port=flags.port,
            workers=flags.workers,
        )
        verb = "continuing" if known else "new run"
        observer.log(f"{verb} in {folder.path}")
        observer.log(
            f"shepherd process {os.getpid()} listens on {flags.host}:{shepherd.port}"
        )
        outcome = shepherd.run()
    finally:
        observer.close()
    conclude(folder, outcome)


def watch(experiment, folder: RunFolder, *, plain: bool) -> Fanout:
    """Everybody who watches a run: screen, metrics file, W&B."""
    observers: list[Observer] = [MetricsFile(folder.metrics)]
    observers += jobs.wandb_observer(experiment, folder.name)
    rounds = experiment.outer_loop_steps
    if sys.stdout.isatty() and not plain:
        from rich.console import Console

        observers.append(Dashboard(rounds, Console()))
    else:
        observers.append(PlainLog(rounds, jobs.say))
    return Fanout(observers)


def conclude(folder: RunFolder, outcome: Outcome) -> None:
    """Draw the plot and print the summary."""
    from pcp.training.plot import plot_losses

    rounds, validations = read(folder.metrics)
    early = " (cancelled; --resume goes on)" if outcome.cancelled else ""
    lines = {"rounds": f"{outcome.rounds}{early}"}
    if rounds:
        plot_losses(rounds, validations, folder.plot)
        lines["first loss"] = f"{rounds[0].loss_first:.4f}"
        lines["final loss"] = f"{rounds[-1].loss:.4f}"
    if outcome.validation_loss is not None:
        lines["validation loss"] = f"{outcome.validation_loss:.4f}"
    if rounds:
        tokens, seconds = rounds[-1].tokens_total, sum(r.seconds for r in rounds)
        sent = sum(r.bytes_sent_per_worker for r in rounds) // len(rounds)
        lines["tokens"] = f"{tokens:,} in {seconds:.1f} s"
        lines["tokens/s"] = f"{tokens / max(seconds, 1e-9):,.0f}"
        lines["bytes sent"] = f"{sent:,} per worker and round"
    if rounds:
        lines["loss plot"] = str(folder.plot)
    lines["metrics"] = str(folder.metrics)
    lines["checkpoint"] = outcome.checkpoint or "none"
    for name, value in lines.items():
        jobs.say(f"{name:<16}{value}")
