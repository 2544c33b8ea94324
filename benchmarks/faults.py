"""Training while its processes are killed, and for how long it takes to mend.

    python benchmarks/faults.py storm      200 workers and 20 shepherds killed
    python benchmarks/faults.py restarts   50 workers killed, one after another
    python benchmarks/faults.py restarts --workers 3 --mesh tp=2 --kills 20
                                           a rank of an island behind every third round
    python benchmarks/faults.py soak       5,000 rounds with churn: what grows?

Restarts are those of the demo's model, the others train a tiny one. All is run as a
user does: a supervised shepherd and a node manager
with its workers, processes of this machine, killed by SIGKILL. The injector goes for
the states of the protocol in which it killed least, and says which it hit. At the end
the ledger is checked, and the last checkpoint must be the state the ledger committed.
During a storm the states that workers hold are compared with the ledger's too. With
`--keep` and `--limit` a storm is made in parts. Needs psutil.
"""

import argparse
import math
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import psutil
from emulated_run import bundle, program
from faults_audit import Audit
from faults_run import (
    END_SECONDS,
    Injector,
    Parts,
    Run,
    Slots,
    children,
    started,
)

DEADLINE = 10.0
"""Of a round, in a storm: seconds."""
SETTLED = 10.0
"""Seconds a process lives before it is killed: a crash loop would be slowed down."""
STALL_SECONDS = 4 * DEADLINE
"""Longest time without a commit: a shepherd and the last holders may die together."""


def storm(flags: argparse.Namespace) -> None:
    """Kills in all states of the protocol."""
    plan = ["worker"] * flags.kills + ["shepherd"] * flags.shepherds
    random.Random(flags.seed).shuffle(plan)
    keep = Path(flags.keep) if flags.keep else None
    changes = _endless(
        tau=50,
        validate_every=5,
        validation_fraction=0.005,
        round_deadline_seconds=DEADLINE,
        heartbeat_limit_seconds=4.0,
    )
    with ExitStack() as stack:
        changes["model_path"] = _tiny(stack, keep)
        run = stack.enter_context(started(flags.workers, keep, **changes))
        parts = Parts.read(run.log.parent / "parts.json")
        done = _strike(run, plan, parts, flags)
        for (kind, state), count in sorted(parts.fired.items()):
            print(f"  killed {count:4} times: {kind}, {state}")
        longest, gap = parts.stalls(run.rounds())
        print(
            f"{parts.kills} kills in {parts.seconds:.0f} s in {len(parts.times)} parts"
        )
        print(f"longest round {longest:.1f} s, time between commits {gap:.1f} s")
        print(f"{parts.audited} states that workers held were the ledger's", flush=True)
        if done:
            run.finish()
        assert longest <= DEADLINE, "a round is late"
        assert gap <= STALL_SECONDS, "nothing was committed for too long"


def _strike(run: Run, plan: list[str], parts: Parts, flags: argparse.Namespace) -> bool:
    """Kill by the plan from where it was left; whether all of it was done."""
    rng = random.Random(f"{flags.seed} {parts.kills}")
    injector = Injector(run, rng, parts.fired)
    began = time.time()
    until = began + flags.limit
    with Audit(run) as audit:
        for number, kind in enumerate(plan[parts.kills :], parts.kills + 1):
            if time.time() > until:
                break
            _pause(run, rng, flags.pause)
            injector.strike(kind)
            parts.save(began)
            if number % 20 == 0:
                print(f"  {number} kills, round {run.rounds()[-1].round}", flush=True)
        run.wait(run.full)
        parts.save(began, audit.close())
    return parts.kills == len(plan)


def _pause(run: Run, rng: random.Random, longest: float) -> None:
    """Until two rounds were committed, or one, or none: what befalls whom varies."""
    wanted = len(run.rounds()) + rng.choice((0, 1, 1, 2))
    until = time.monotonic() + longest
    while len(run.rounds()) < wanted and time.monotonic() < until:
        time.sleep(0.01)


def restarts(flags: argparse.Namespace) -> None:
    """From a worker's death to the commit of a round that all workers made.

    With a mesh a rank of an island dies behind each third round, and of the island's
    death there is the next commit too; what is learnt is compared with an undisturbed
    run's of as many samples, and after as many rounds.
    """
    rng, deaths, took, back = random.Random(flags.seed), [], [], []
    mesh = {} if flags.mesh is None else {"mesh": flags.mesh, "validate_every": 2}
    changes, learnt = _endless(tau=flags.tau, **mesh), None
    begun = started(flags.workers, None, flags.spares, **changes)
    with begun as run, Audit(run) as audit:
        slots, until = Slots(run.node), time.monotonic() + flags.limit
        injector = Injector(run, rng, Counter())
        while len(took) < flags.kills and time.monotonic() < until:
            run.wait(run.full)
            if mesh:
                _wait_for_round(run, 3 * len(took) + 3)
            time.sleep(rng.uniform(0.5, 1.5))
            victim = rng.choice(_settled(run, slots, injector))
            deaths.append(died := time.time())
            slots.kill(victim)
            run.wait(lambda status: len(status["workers"]) < run.wanted)
            run.wait(run.full)
            back.append(time.time() - died)
            took.append(_contributed(run, died) - died)
        _quantiles("ready again", back)
        _quantiles("first round with it committed", took)
        _quantiles("a round", [r.seconds for r in run.rounds()])
        if mesh:
            _quantiles("first round without its island", _without(run, deaths))
            learnt = Learnt.of(run, *last_validation(run))
        print(f"{audit.close()} states that workers held were the ledger's", flush=True)
        run.finish()
    if learnt is not None:
        _compare(flags, changes, learnt)


def last_validation(run: Run) -> tuple[int, float]:
    """The next round that is validated, now that all are back, and its loss."""
    until = time.monotonic() + 900
    wanted = run.rounds()[-1].round + 1
    while max(found := run.validations(), default=0) < wanted:
        run.check_time(until)
        time.sleep(0.1)
    return max(found), found[max(found)]


@dataclass(frozen=True)
class Learnt:
    """A validation: of so many rounds and tokens; deaths take islands away."""

    rounds: int
    tokens: int
    loss: float

    @classmethod
    def of(cls, run: Run, number: int, loss: float) -> Self:
        """That behind a round, which is printed."""
        made = {r.round: r.tokens for r in run.rounds() if r.round <= number}
        tokens = sum(made.values())
        print(f"  {tokens:,} tokens in {number} rounds: loss {loss:.4f}", flush=True)
        return cls(number, tokens, loss)


def _wait_for_round(run: Run, number: int, seconds: float = 600.0) -> None:
    """Until so many rounds are committed."""
    until = time.monotonic() + seconds
    while len(run.rounds()) < number:
        run.check_time(until)
        time.sleep(0.02)


def _without(run: Run, deaths: Sequence[float]) -> list[float]:
    """From each death to the first commit without the island that lost a rank."""
    alone = [r.time for r in run.rounds() if r.workers < run.wanted]
    return [min(at for at in alone if at > died) - died for died in deaths]


def _loss_behind(run: Run, number: int) -> float:
    """The validation loss behind a round."""
    until = time.monotonic() + 900
    while number not in (found := run.validations()):
        run.check_time(until)
        time.sleep(0.1)
    return found[number]


def _compare(
    flags: argparse.Namespace, changes: dict[str, object], learnt: Learnt
) -> None:
    """What an undisturbed run has learnt from as many samples, and in as many rounds.

    Behind as many samples is between two rounds that are validated.
    """
    with started(flags.workers, None, **changes) as run:
        _loss_behind(run, learnt.rounds)
        losses = run.validations()
        known = [Learnt.of(run, number, losses[number]) for number in sorted(losses)]
        run.finish()
    tokens, found = [k.tokens for k in known], [k.loss for k in known]
    samples = float(np.interp(learnt.tokens, tokens, found))
    for what, quiet in (("samples", samples), ("rounds", losses[learnt.rounds])):
        print(f"  undisturbed, of as many {what}: {quiet:.4f}, ", end="")
        print(f"{learnt.loss / quiet - 1:+.2%} apart")
    assert abs(learnt.loss / samples - 1) <= 0.01, "the loss is more than 1 % apart"


def _settled(
    run: Run, slots: Slots, injector: Injector | None = None
) -> list[psutil.Process]:
    """Who may be killed, once there is somebody; of an `injector` only members."""
    until = time.monotonic() + END_SECONDS
    while not (
        found := [
            p
            for p in slots.spared()
            if _age(p) > SETTLED and (injector is None or p in injector.members())
        ]
    ):
        run.check_time(until)
        time.sleep(0.05)
    return found


def _contributed(run: Run, died: float) -> float:
    """When the first round was committed that all workers began after a death."""
    until = time.monotonic() + 600
    while time.monotonic() < until:
        for made in run.rounds():
            if made.time - made.seconds > died and made.workers == run.wanted:
                return made.time
        time.sleep(0.01)
    raise SystemExit("no round with all workers")


def soak(flags: argparse.Namespace) -> None:
    """Rounds of one step with churn; what the processes hold must not grow."""
    rng = random.Random(flags.seed)
    with ExitStack() as stack:
        keep = Path(flags.keep) if flags.keep else None
        changes = _endless(tau=1, model_path=_tiny(stack, keep), checkpoint_every=100)
        run = stack.enter_context(started(flags.workers, keep, **changes))
        seen: dict[str, list[Usage]] = {"shepherd": [], "worker": []}
        slots, steady = Slots(run.node), children(run.node)[0]  # never killed
        kills, reached, mark = 0, 0, 0
        until = time.monotonic() + flags.limit
        while reached < flags.rounds and time.monotonic() < until:
            time.sleep(0.2)
            rounds = run.rounds()
            reached = rounds[-1].round if rounds else 0
            if reached < mark:
                continue
            mark = reached + max(1, flags.rounds // 100)
            seen["shepherd"].append(_usage(children(run.shepherd)[0]))
            seen["worker"].append(_usage(steady))
            if others := [p for p in slots.spared() if p != steady]:
                slots.kill(rng.choice(others))
                kills += 1
        print(f"{reached} rounds, {kills} workers killed")
        grown = [_growth(name, usage) for name, usage in seen.items()]
        run.finish()
        assert not any(grown), "something grows"


Usage = tuple[float, int, int, int]
MEASURED = ("RSS, MB", "files", "sockets", "threads")
SLACK = {"RSS, MB": 0.03}
"""By how much a median may be larger late in a soak than early; else, not at all.

Nor is what was there in the beginning a growth: a thread comes and goes.
"""


def _growth(name: str, usage: Sequence[Usage]) -> list[str]:
    """What grew from the second quarter of a run to its last, which is printed too."""
    quarter, grown = len(usage) // 4, []
    print(f"  {name:9}{'start':>9}{'2nd quarter':>14}{'last quarter':>14}")
    for what, values in zip(MEASURED, zip(*usage, strict=True), strict=True):
        early = statistics.median(values[quarter : 2 * quarter])
        late = statistics.median(values[-quarter:])
        print(f"  {what:9}{values[0]:9.1f}{early:14.1f}{late:14.1f}")
        if late > max(early * (1 + SLACK.get(what, 0.0)), values[0]):
            grown.append(what)
    return grown


def _tiny(stack: ExitStack, keep: Path | None, compiled: bool = True) -> str:
    """A model whose steps take a millisecond; kept, or there for a while.

    It is compiled for whole workers; for islands the run compiles it.
    """
    folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
    folder.mkdir(exist_ok=True)
    path, size = folder / ("tiny.pcp" if compiled else "tiny.mlir"), (16, 1, 16, 2)
    if not path.exists() and compiled:
        bundle(*size, algorithm="diloco").write(path)
    elif not path.exists():
        path.write_text(str(program(*size)))
    return str(path)


def _endless(**changes: object) -> dict[str, object]:
    """Settings of a run that ends when it is told to."""
    return {
        "outer_loop_steps": 1_000_000,
        "max_epochs": 10_000,
        "validate_every": 0,
        "validation_fraction": 0.05,
        "checkpoint_every": 20,
        "heartbeat_seconds": 0.2,
        "round_timeout_seconds": 30.0,
        **changes,
    }


def _usage(process: psutil.Process) -> Usage:
    rss = process.memory_info().rss / 1e6
    sockets = len(process.net_connections("all"))
    return rss, process.num_fds(), sockets, process.num_threads()


def _age(process: psutil.Process) -> float:
    return time.time() - process.create_time()


def _quantiles(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    last = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    middle = statistics.median(ordered)
    print(f"  {what}: median {middle:.2f} s, 95 % {last:.2f} s, n {len(ordered)}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("storm", "restarts", "soak"))
    parser.add_argument("--kills", type=int, help="workers; default 200, restarts: 50")
    parser.add_argument("--shepherds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--mesh", help="restarts: workers are islands of this mesh")
    parser.add_argument("--tau", type=int, default=5, help="restarts: inner steps")
    parser.add_argument("--spares", type=int, default=0, help="restarts: more ranks")
    parser.add_argument("--rounds", type=int, default=5000, help="of the soak")
    parser.add_argument(
        "--pause", type=float, default=10.0, help="longest, in the storm"
    )
    parser.add_argument(
        "--limit", type=float, default=math.inf, help="seconds of kills, or rounds"
    )
    parser.add_argument("--keep", metavar="DIR", help="the run's folder; go on with it")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    flags.kills = flags.kills or (50 if flags.what == "restarts" else 200)
    {"storm": storm, "restarts": restarts, "soak": soak}[flags.what](flags)


if __name__ == "__main__":
    main()
