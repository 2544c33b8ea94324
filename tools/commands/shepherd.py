"""`pcp shepherd`: coordinate a run whose workers come from anywhere."""

import os
import signal
import sys
from argparse import SUPPRESS, ArgumentTypeError
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pcp.errors import MissingPackage
from pcp.tools.support import interrupts
from pcp.tools.support import training_job as jobs
from pcp.tools.support.command import MAX_PORT, Parser, port_number, run
from pcp.tools.support.lines import say
from pcp.tools.support.model_check import inspector
from pcp.tools.support.protection import (
    add_insecure_flag,
    add_protection_flags,
    protection,
    require_protection,
)
from pcp.tools.support.signals import at_once, on_signals
from pcp.training.config.experiment import Experiment
from pcp.training.coordinator.completion import Outcome
from pcp.training.observe.callbacks import Callbacks, Calls
from pcp.training.observe.dashboard import Dashboard, PlainLog
from pcp.training.observe.journal import Journal
from pcp.training.observe.metrics import Fanout, MetricsFile, Observer, read
from pcp.training.observe.past_run import write_report
from pcp.training.observe.prometheus import Prometheus
from pcp.training.observe.web import WebPage
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import nonfinite
from pcp.training.storage.round_record import Round, data_wait_share
from pcp.training.storage.run_folder import RunFolder

PROG = "pcp shepherd"
WEB = "127.0.0.1:0"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, _main, argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="Coordinate a training run.",
        example="pcp shepherd --config x.json --host 0.0.0.0 --key-file run.key",
    )
    add = parser.add_argument
    add("--config", required=True, metavar="FILE", help="the experiment (JSON)")
    add("--host", default="127.0.0.1", help="address to listen on; default 127.0.0.1")
    add("--port", type=port_number, default=8080, help="default 8080; 0: any free one")
    add("--workers", type=int, help="workers to wait for; default: the experiment's")
    jobs.add_islands(parser)
    add("--model", metavar="FILE", help="instead of the experiment's model_path")
    add("--algorithm", metavar="SPEC", help="instead of the experiment's: ddp, ...")
    jobs.add_set(parser)
    add("--resume", action="store_true", help="continue the latest run, if any")
    add("--run", metavar="DIR", help="the run's folder; default: a new one")
    add("--no-dashboard", action="store_true", help="plain lines in a terminal too")
    add_web(parser)
    add_insecure_flag(parser)
    add_protection_flags(parser)
    # Of the predecessor, whose command lines still work: a finished run ends anyway.
    add("--terminate", action="store_true", help=SUPPRESS)
    return parser


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    protected = protection(flags)
    require_protection(flags.host, protected, flags.insecure)
    flags.changes = jobs.with_islands(flags)
    experiment = jobs.read_run(flags)
    jobs.check_islands(flags, experiment)
    jobs.check_compiler(experiment.model_path)
    resume = flags.resume or experiment.should_resume
    folder, known = jobs.run_folder(experiment, resume=resume, where=flags.run)
    folder.keep_changes(dict(flags.changes))
    screen = {"plain": flags.no_dashboard, "web": flags.web}
    with watched(experiment, folder, **screen) as observer:
        shepherd = Shepherd(
            experiment,
            folder,
            jobs.compiler_for(experiment, observer.log),
            observer,
            host=flags.host,
            port=flags.port,
            workers=flags.workers,
            protection=protected,
            inspect=inspector(experiment),
        )
        verb = "continuing" if known else "new run"
        observer.log(f"{verb} in {folder.path}")
        observer.log(
            f"shepherd process {os.getpid()} listens on {flags.host}:{shepherd.port}"
        )
        # SIGTERM is for this process, which may come back with --resume, while its
        # workers wait; Ctrl-C is for the run, and so is a terminal that closes.
        ends = (signal.SIGINT, signal.SIGHUP)
        with on_signals(interrupts.saving(shepherd), ends):
            outcome = shepherd.run()
    conclude(folder, outcome)
    return interrupts.exit_code(shepherd)


def add_web(parser: Parser) -> None:
    """The flag `--web`, of all commands that hold a shepherd."""
    parser.add_argument(
        "--web",
        default=WEB,
        type=_web_address,
        metavar="[HOST:]PORT|off",
        help="where the run's web page and /metrics are; default 127.0.0.1 and any "
        "free port",
    )


def _web_address(text: str) -> tuple[str, int] | None:
    if text == "off":
        return None
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > MAX_PORT:
        raise ArgumentTypeError(f"expected [HOST:]PORT or off, not {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


@contextmanager
def watched(
    experiment: Experiment,
    folder: RunFolder,
    callbacks: Sequence[Callbacks] = (),
    **screen: Any,
) -> Iterator[Fanout]:
    """What surrounds a run's shepherd: who watches (`watch`), and a good end.

    A signal says what is left of the run; no compiler outlives the block, and no
    folder of a run that never began.
    """
    with (
        interrupts.told(folder),
        on_signals(at_once),
        jobs.discarded_unless_begun(folder),
        interrupts.no_compiler_left(),
        closing(watch(experiment, folder, callbacks, **screen)) as observer,
    ):
        yield observer


def watch(
    experiment: Experiment,
    folder: RunFolder,
    callbacks: Sequence[Callbacks] = (),
    *,
    plain: bool,
    web: tuple[str, int] | None = None,
) -> Fanout:
    """Everybody who watches a run: screen, web page, metrics file, W&B, callbacks.

    And TensorBoard where tensorboardX is installed.
    """
    past = read(folder.metrics) if folder.metrics.exists() else ([], {})
    page = _web_page(experiment, past, *web) if web else []
    rounds = experiment.outer_loop_steps
    observers: list[Observer] = [MetricsFile(folder.metrics, jobs.say), *page]
    observers.append(Journal(rounds, folder.log, folder.workers))
    observers += jobs.wandb_observer(experiment, folder.name)
    if find_spec("tensorboardX"):
        from pcp.training.observe.tensorboard import TensorBoard

        behind = past[0][-1].round if past[0] else 0
        observers.append(TensorBoard(folder.tensorboard, behind))
    if sys.stdout.isatty() and not plain:
        from rich.console import Console

        observers.append(Dashboard(rounds, Console()))
    else:
        observers.append(PlainLog(rounds, jobs.say))
    fanout = Fanout([*observers, *map(Calls, callbacks)])
    for shown in page[:1]:
        fanout.log(f"web page {shown.url}")
    return fanout


def _web_page(experiment: Experiment, past, host: str, port: int) -> list[Any]:
    """The page, and what counts for its /metrics where prometheus-client is there."""
    figures = Prometheus() if find_spec("prometheus_client") else None
    page = WebPage(
        host,
        port,
        experiment.outer_loop_steps,
        history=past[0],
        validations=past[1],
        metrics=figures.text if figures else None,
    )
    return [page, figures] if figures else [page]


def conclude(folder: RunFolder, outcome: Outcome) -> None:
    """Draw the plot, write the report and print the summary.

    The first and the final loss are alike: means over a round.
    """
    rounds, validations = read(folder.metrics)
    early = " (cancelled; --resume goes on)" if outcome.cancelled else ""
    lines = {"rounds": f"{outcome.rounds}{early}"}
    if rounds:
        lines["first loss"] = f"{rounds[0].loss:.4f}"
        lines["final loss"] = f"{rounds[-1].loss:.4f}"
    if bad := nonfinite.summary(rounds):
        lines["not finite"] = bad
    if outcome.validation_loss is not None:
        lines["validation loss"] = f"{outcome.validation_loss:.4f}"
    if rounds:
        tokens, seconds = rounds[-1].tokens_total, sum(r.seconds for r in rounds)
        sent = sum(r.bytes_sent_per_worker for r in rounds) // len(rounds)
        lines["tokens"] = f"{tokens:,} in {seconds:.1f} s"
        lines["tokens/s"] = f"{tokens / max(seconds, 1e-9):,.0f}"
        lines["waited for data"] = f"{data_wait_share(rounds):.1%} of the inner steps"
        lines["bytes sent"] = f"{sent:,} per worker and round"
    if rounds:
        lines["loss plot"] = _plotted(folder, rounds, validations)
    if outcome.best is not None:
        round_, loss = outcome.best
        lines["best round"] = f"{round_}, validation loss {loss:.4f}"
        if (best := best_folder(folder, outcome)) is not None:
            lines["best checkpoint"] = str(best)
    lines["report"] = str(write_report(folder.path))
    lines["metrics"] = str(folder.metrics)
    lines["checkpoint"] = outcome.checkpoint or "none"
    for name, value in lines.items():
        say(f"{name:<16}{value}")


def best_folder(folder: RunFolder, outcome: Outcome) -> Path | None:
    """The checkpoint of the best round, if there is one of it."""
    if outcome.best is None:
        return None
    found = checkpoints.folders(folder.path)
    there = [f for f in found if checkpoints.round_of(f) == outcome.best[0]]
    return there[0] if there else None


def _plotted(
    folder: RunFolder, rounds: Sequence[Round], validations: Mapping[int, float]
) -> str:
    """Where the plot lies, or what it needs: the run is complete without it."""
    from pcp.training.observe.plot import plot_losses

    try:
        return str(plot_losses(rounds, validations, folder.plot))
    except MissingPackage as error:
        return f"none: {error}"
