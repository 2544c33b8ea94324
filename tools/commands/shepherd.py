"""`pcp shepherd`: coordinate a run whose workers come from anywhere."""

import hmac
import os
import secrets
import signal
import socket
import sys
from argparse import SUPPRESS, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pcp.errors import ConfigError, MissingPackage, UsageError, install
from pcp.runtime.transport.address import is_loopback, parse_address
from pcp.runtime.transport.credentials import Protection
from pcp.tools import island_flags
from pcp.tools.pages.bundle_page import programs
from pcp.tools.support import interrupts
from pcp.tools.support import training_job as jobs
from pcp.tools.support.command import Parser, port_number, run
from pcp.tools.support.lines import say
from pcp.tools.support.model_check import inspector
from pcp.tools.support.protection import (
    add_insecure_flag,
    add_protection_flags,
    add_sign_flag,
    add_trust_flag,
    protection,
    require_protection,
    signer,
    trusted_ids,
)
from pcp.tools.support.signals import at_once, on_signals
from pcp.training.config.experiment import Experiment
from pcp.training.coordinator.completion import Outcome
from pcp.training.observe.callbacks import CallbackObserver, Callbacks
from pcp.training.observe.dashboard import Dashboard, PlainLog
from pcp.training.observe.journal import Journal
from pcp.training.observe.metrics import MetricsFile, Observer, ObserverFanout, read
from pcp.training.observe.orders import Desk
from pcp.training.observe.past_run import write_report
from pcp.training.observe.prometheus import Prometheus
from pcp.training.observe.tensorboard import TensorBoard
from pcp.training.observe.web import is_there, needs_packages
from pcp.training.shepherd.artifacts import CompileFor
from pcp.training.shepherd.elector import Elector
from pcp.training.shepherd.etcd import place
from pcp.training.shepherd.etcd_elector import EtcdElector
from pcp.training.shepherd.leading import led
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.shepherd.voters import Voters
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import nonfinite
from pcp.training.storage.round_record import Round, data_wait_share
from pcp.training.storage.run_folder import RunFolder
from pcp.training.wire.channel import OPEN
from pcp.training.wire.discovery import announced, tag_of

PROG = "pcp shepherd"
WEB = ("127.0.0.1", 0)


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
    island_flags.add_flags(parser)
    add("--model", metavar="FILE", help="instead of the experiment's model_path")
    add("--algorithm", metavar="SPEC", help="instead of the experiment's: ddp, ...")
    jobs.add_set(parser)
    add("--resume", action="store_true", help="continue the latest run, if any")
    add("--run", metavar="DIR", help="the run's folder; default: a new one")
    add("--no-dashboard", action="store_true", help="plain lines in a terminal too")
    add_web(parser)
    add(
        "--announce",
        action="store_true",
        help="let workers of the same namespace find this shepherd: pcp worker "
        "--discover",
    )
    _add_elector_flags(parser)
    add_sign_flag(parser)
    add_trust_flag(parser)
    add_insecure_flag(parser)
    add_protection_flags(parser)
    # Of the predecessor, whose command lines still work: a finished run ends anyway.
    add("--terminate", action="store_true", help=SUPPRESS)
    add("--streaming", action="store_true", help=SUPPRESS)
    return parser


def _main(argv: Sequence[str]) -> int:
    flags = parser().parse_args(argv)
    if flags.streaming:
        raise UsageError(
            "--streaming: data are read as they are needed, always; an exchange in "
            "parts, while workers go on, is --algorithm streaming_diloco"
        )
    protected = protection(flags)
    require_protection(flags.host, protected, flags.insecure)
    flags.changes = island_flags.changes(flags)
    experiment = jobs.read_run(flags)
    jobs.check_compiler(experiment.model_path)
    experiment = jobs.planned(experiment)
    island_flags.check(flags, experiment)
    others = _others(flags, protected)
    serve = partial(_run, flags, tag_of(protected) if flags.announce else None)
    # What another shepherd wrote is gone on with.
    resume = flags.resume or experiment.should_resume or others is not None
    folder, known = jobs.run_folder(experiment, resume=resume, where=flags.run)
    folder.keep_changes(dict(flags.changes))
    screen = {"plain": flags.no_dashboard, "web": flags.web}
    screen |= {"protected": protected, "insecure": flags.insecure}
    with watched(experiment, folder, **screen) as observer:

        def make(compile_for: CompileFor, elector: Elector | None = None) -> Shepherd:
            made = Shepherd(
                experiment,
                folder,
                compile_for,
                observer,
                host=flags.host,
                port=flags.port,
                workers=flags.workers,
                protection=protected,
                inspect=inspector(experiment),
                signer=signer(flags),
                trusted=trusted_ids(flags),
                elector=elector,
            )
            verb = "continuing" if known else "new run"
            observer.log(f"{verb} in {folder.path}")
            observer.log(
                f"shepherd process {os.getpid()} listens on {flags.host}:{made.port}"
            )
            return made

        compile_for = jobs.compiler_for(experiment, observer.log)
        if others is not None:
            log = observer.log
            ended = led(make, others(folder.ledger, log), compile_for, log, serve)
            if ended is None:
                return 0
            shepherd, outcome = ended
        else:
            shepherd = make(compile_for)
            outcome = serve(shepherd)
    conclude(folder, outcome)
    return interrupts.exit_code(shepherd)


def _run(flags: Namespace, tag: str | None, shepherd: Shepherd) -> Outcome:
    """Serve until the run ends, or a signal ends it; announced, if there is a tag."""
    known = nullcontext() if tag is None else announced(flags.host, shepherd.port, tag)
    # SIGTERM is for this process, which may come back with --resume, while its
    # workers wait; Ctrl-C is for the run, and so is a terminal that closes.
    ends = (signal.SIGINT, signal.SIGHUP)
    with on_signals(interrupts.saving(shepherd), ends), known:
        return shepherd.run()


def _add_elector_flags(parser: Parser) -> None:
    """`--voters` and `--voter`, or `--etcd`: several shepherds of one run."""
    add = parser.add_argument
    add(
        "--voters",
        metavar="HOST:PORT,...",
        help="where the shepherds of this run meet, an odd number of them: one leads, "
        "the others stand by with its ledger; needs --run, a folder for each",
    )
    add("--voter", type=int, metavar="N", help="which of --voters this one is, from 0")
    add(
        "--etcd",
        metavar="URL/NAME,...",
        help="in place of --voters, for any number of shepherds: an etcd cluster that "
        "has the ledger, and the lease of who leads; NAME is the run's",
    )


def _others(
    flags: Namespace, protected: Protection
) -> Callable[[Path, Callable[[str], None]], Elector] | None:
    """How this shepherd stands by, from its ledger's file; None: it is alone."""
    if flags.etcd is not None:
        if flags.voters is not None or flags.voter is not None or not flags.run:
            raise UsageError("--etcd goes with --run, and without --voters")
        where = place(flags.etcd, os.environ)
        if where.bare and not flags.insecure:
            raise UsageError(
                "--etcd over http to another machine: whoever is on the way could lead "
                "the run; use https, or say --insecure on a closed network"
            )
        me = f"{flags.host}:{flags.port} ({socket.gethostname()})"
        return partial(EtcdElector, where, me)
    if flags.voters is None and flags.voter is None:
        return None
    if not flags.voters or flags.voter is None or not flags.run:
        raise UsageError("--voters, --voter and --run go together")
    addresses = [word.strip() for word in flags.voters.split(",")]
    for address in addresses:
        host, _ = parse_address(address)
        require_protection(host, protected, flags.insecure)
    return partial(Voters, addresses, flags.voter, protected)


def _web_token(protected: Protection, insecure: bool) -> str:
    """For the page beyond this machine: none if that was said, or the key's own.

    That of a key is the same after a restart.
    """
    if protected.key is None:
        return "" if insecure else secrets.token_urlsafe(24)
    key = protected.key
    raw = key.encode() if isinstance(key, str) else key
    return hmac.digest(raw, b"pcp web page", "sha256").hex()[:32]


def add_web(parser: Parser) -> None:
    """The flag `--web`, of all commands that hold a shepherd."""
    parser.add_argument(
        "--web",
        default=WEB,
        type=_web_address,
        metavar="[HOST:]PORT|off",
        help="where the run's web page and /metrics are; default 127.0.0.1 and any "
        "free port, where the extra web is installed",
    )


def _web_address(text: str) -> tuple[str, int] | None:
    if text == "off":
        return None
    bare = text.removeprefix(":")
    try:
        return parse_address(bare if ":" in bare else f"127.0.0.1:{bare}")
    except ConfigError:
        why = f"expected [HOST:]PORT or off, not {text!r}"
        raise ArgumentTypeError(why) from None


@contextmanager
def watched(
    experiment: Experiment,
    folder: RunFolder,
    callbacks: Sequence[Callbacks] = (),
    **screen: Any,
) -> Iterator[ObserverFanout]:
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
    protected: Protection = OPEN,
    insecure: bool = False,
) -> ObserverFanout:
    """All observers of a run: screen, web page, metrics and event file, callbacks.

    And W&B where there is a key.
    """
    past = read(folder.metrics) if folder.metrics.exists() else ([], {})
    page: list[Any] = []
    absent = web is WEB and not is_there()
    if web and not absent:
        desk = Desk(folder.path.resolve(), protected, anywhere=insecure)
        token = "" if is_loopback(web[0]) else _web_token(protected, insecure)
        page = _web_page(experiment, past, *web, token, desk)
    rounds = experiment.outer_loop_steps
    observers: list[Observer] = [MetricsFile(folder.metrics, say), *page]
    observers.append(Journal(rounds, folder.log, folder.json_log, folder.workers))
    observers += jobs.wandb_observer(experiment, folder.name)
    behind = past[0][-1].round if past[0] else 0
    observers.append(TensorBoard(folder.tensorboard, behind))
    if sys.stdout.isatty() and not plain:
        from rich.console import Console

        observers.append(Dashboard(rounds, Console()))
    else:
        observers.append(PlainLog(rounds, say))
    fanout = ObserverFanout([*observers, *map(CallbackObserver, callbacks)])
    for shown in page[:1]:
        fanout.log(f"web page {shown.url}")
    if absent:
        fanout.log(f"no web page: {install('web')}")
    return fanout


def _web_page(
    experiment: Experiment, past, host: str, port: int, token: str, desk: Desk
) -> list[Any]:
    """The page, and what counts for its /metrics where prometheus-client is there."""
    needs_packages()
    from pcp.training.observe.web.live_page import WebPage

    figures = Prometheus() if find_spec("prometheus_client") else None
    page = WebPage(
        host,
        port,
        experiment.outer_loop_steps,
        history=past[0],
        validations=past[1],
        metrics=figures.text if figures else None,
        token=token,
        desk=desk,
        programs=partial(programs, desk.folder),
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
    lines["report"] = str(write_report(folder.path, programs))
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
