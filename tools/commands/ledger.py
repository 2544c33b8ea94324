"""What a run's ledger proves.

pcp ledger check RUN     no sample was used twice, and none lost
pcp ledger replay RUN    the rounds, made again here, have the recorded digests
"""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from pcp import strict_json
from pcp.bundle import sha256
from pcp.errors import ConfigError, StateMismatch, UsageError, counted
from pcp.tools.support import training_job as jobs
from pcp.tools.support.command import Parser, run
from pcp.tools.support.lines import say
from pcp.tools.support.signals import in_order
from pcp.training.config.experiment import Experiment
from pcp.training.simulate.replay import Replay
from pcp.training.simulate.replay_island import Load
from pcp.training.storage.ledger import FILE_NAME, prove, read
from pcp.training.trainer.bundle_trainer import BundleTrainer
from pcp.training.trainer.load import load_made

PROG = "pcp ledger"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return run(PROG, in_order(_main), argv)


def parser() -> Parser:
    """Its flags."""
    parser = Parser(
        prog=PROG,
        description="check: each sample of each epoch was used at most once, and none "
        "was lost. replay: make all rounds again in one process, and compare.",
        example="pcp ledger check runs/run_20261121-031500",
    )
    add = parser.add_argument
    add("action", choices=("check", "replay"))
    add("run", metavar="RUN", help="a run's folder, or its ledger")
    add("--rounds", type=int, metavar="N", help="replay: stop after N; default: all")
    add("--data", metavar="FILE", help="replay: the data on this machine")
    add("--device", default="local-task", help="replay: where; default local-task")
    return parser


def _main(argv: Sequence[str]) -> None:
    flags = parser().parse_args(argv)
    if flags.rounds is not None and flags.rounds < 1:
        raise UsageError(f"--rounds {flags.rounds}: at least one")
    path = Path(flags.run)
    path = path / FILE_NAME if path.is_dir() else path
    if not path.exists():
        raise ConfigError(f"{path}: no ledger there")
    records, _ = read(path)
    for line in prove(records, path).lines():
        say(line)
    say("ledger ok")
    if flags.action == "replay":
        load = loader(flags.device)
        with closing(Replay(records, load, flags.data, path.parent)) as again:
            follow(again, flags.rounds)


def loader(device: str) -> Load:
    """Compiles an experiment's model for a target, once, and loads it on a device."""
    made: dict[tuple[str, str], bytes] = {}

    def loaded(
        experiment: Experiment, target: str, coordinate: int = 0
    ) -> tuple[BundleTrainer, str]:
        key = (strict_json.dumps(experiment.model_dump()), target)
        if key not in made:
            made[key] = jobs.compiler_for(experiment, jobs.say)(target)
        source = f"bundle for {target}"
        trainer = load_made(made[key], source, device, target, coordinate)
        return trainer, sha256(made[key])

    return loaded


def follow(again: Replay, rounds: int | None = None) -> None:
    """Report a replay; `StateMismatch` says what differs first."""
    done = 0
    for made in again.rounds():
        if not made.same:
            notes = "".join(f"; {note}" for note in again.notes)
            raise StateMismatch(f"{made.difference()}{notes}")
        done += 1
        what = f"{counted(made.workers, 'worker')}, loss {made.loss_found:.4f}"
        say(f"round {made.round:<6} {made.found[:12]}  {what}")
        if done == rounds:
            break
    for note in again.notes:
        say(f"note: {note}")
    if not done:
        say("no round is committed: there is nothing to replay")
        return
    say(f"replayed {counted(done, 'round')}: every digest is the recorded one")
