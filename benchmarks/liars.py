"""A storm of everything: kills, threads that hang, and members that lie, in one run.

    python benchmarks/liars.py                     200 kills, 50 hangs, 20 liars
    python benchmarks/liars.py --kills 20 --hangs 5 --liars 4 --limit 500
    python benchmarks/liars.py --islands 3 --mesh tp=2
                                     200 ranks and 20 shepherds killed, 20 ranks hang

The processes are those of `faults.py storm`: a supervised shepherd, and a node whose
workers hang or lie when a signal says so (`faulty_node.py`). After a lie nothing else
is done until the shepherd has said whose it was. At the end the ledger is checked, and
the last checkpoint must be what it committed; no two commits may be 40 s apart. Of each
gap over 10 s it is said what was done shortly before and in it, and who left meanwhile.

With islands nobody lies. The states that ranks hold are compared with the ledger's all
the time, and at the end the validation loss with that of an undisturbed run after as
many rounds: 1 % apart at most. From a rank's death the first round without its island
is committed within 3 s, and one with it, begun after the death, within 10 s: medians.
"""

import argparse
import json
import math
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from itertools import pairwise
from pathlib import Path

import faults
import psutil
from faults_audit import Audit
from faults_run import Injector, Run, Slots
from island_returns import Returns

FOUND = re.compile(r"\((\S+)\).*(?:prepared another state|left out of round)")
NAMED_SECONDS = 40.0
WORTH_SECONDS = 10.0
"""Of a gap that is told of."""
PEACE = 0.75
"""So often all islands are to be back, and in a round, before the next fault."""


class FaultyRun(Run):
    """A run whose workers are those of `faulty_node.py`."""

    def _start(self, *arguments: str) -> psutil.Popen:
        if arguments[0] != "node":
            return super()._start(*arguments)
        script = Path(__file__).with_name("faulty_node.py")
        command = [sys.executable, str(script), *arguments]
        return psutil.Popen(command, stdout=self._out, stderr=self._out)

    def said(self) -> str:
        """All that its processes wrote."""
        return self.log.read_text(errors="replace")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("kills", "hangs", "liars"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--islands", type=int, help="in place of workers")
    parser.add_argument("--mesh", default="tp=2", help="of an island")
    parser.add_argument("--pause", type=float, default=10.0, help="longest, in s")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    usual = (220, 20, 0) if flags.islands else (200, 50, 20)
    for name, count in zip(("kills", "hangs", "liars"), usual, strict=True):
        if getattr(flags, name) is None:
            setattr(flags, name, count)
    if flags.islands and flags.liars:
        parser.error("--liars: the ranks of islands do not lie here; leave it out")
    folder = Path(tempfile.mkdtemp(prefix="pcp-liars-"))
    print(f"the run is in {folder}, which goes if all is well", flush=True)
    with ExitStack() as stack:
        changes = settings(flags, faults._tiny(stack, None, not flags.islands))
        failed = stormed(folder, flags, changes)
    if failed:
        raise SystemExit("; ".join(failed))
    shutil.rmtree(folder)


def settings(flags: argparse.Namespace, model: str) -> dict[str, object]:
    """Settings of the run."""
    islands = {"mesh": flags.mesh, "validate_every": 10, "validation_fraction": 0.005}
    return faults._endless(
        tau=10 if flags.islands else 50,
        model_path=model,
        round_deadline_seconds=faults.DEADLINE,
        heartbeat_limit_seconds=4.0,
        **islands if flags.islands else {},
    )


def planned(flags: argparse.Namespace, rng: random.Random) -> list[str]:
    """What is done, in this order."""
    plan = ["worker"] * (flags.kills * 10 // 11)
    plan += ["shepherd"] * (flags.kills - len(plan))
    plan += ["hang"] * flags.hangs + ["lie"] * flags.liars
    rng.shuffle(plan)
    return plan


def stormed(
    folder: Path, flags: argparse.Namespace, changes: dict[str, object]
) -> list[str]:
    """What does not hold of a storm."""
    rng = random.Random(flags.seed)
    plan, events = planned(flags, rng), list[tuple[float, str]]()
    run, failed = FaultyRun(folder, flags.islands or flags.workers, **changes), []
    returns, reached, loss = Returns(run), 0, math.nan
    try:
        run.wait(run.full, 300.0)
        began = time.monotonic()
        with Audit(run) if flags.islands else nullcontext() as audit:
            try:
                done = storm(run, plan, rng, flags, events, returns)
                run.wait(run.full)
            finally:
                tell_gaps(run, events)
            took, (gap, _) = time.monotonic() - began, longest_gap(run)
            print(f"{dict(done)} in {took:.0f} s; {len(run.rounds())} rounds")
            print(f"{gap:.1f} s between two at most; every liar was named")
            if audit is not None:
                failed += returns.tell()
                reached, loss = faults.last_validation(run)
                print(f"{audit.close()} states that ranks held were the ledger's")
        run.finish()
    finally:
        run.close()
    if gap > faults.STALL_SECONDS:
        failed.append("nothing was committed for too long")
    if flags.islands:
        failed += apart(folder / "undisturbed", flags, changes, reached, loss)
    return failed


def apart(
    folder: Path,
    flags: argparse.Namespace,
    changes: dict[str, object],
    number: int,
    loss: float,
) -> list[str]:
    """Whether an undisturbed run's loss is another one behind as many rounds."""
    folder.mkdir()
    run = Run(folder, flags.islands, **changes)
    try:
        run.wait(run.full, 300.0)
        faults._wait_for_round(run, number, 3600.0)
        quiet = faults._loss_behind(run, number)
        run.finish()
    finally:
        run.close()
    print(f"  loss behind {number} rounds: {loss:.4f}, undisturbed {quiet:.4f}")
    print(f"  {loss / quiet - 1:+.2%} apart", flush=True)
    return ["the loss is more than 1 % apart"] * (abs(loss / quiet - 1) > 0.01)


def longest_gap(run: Run) -> tuple[float, int]:
    """The longest time between two commits in seconds, and the round behind it."""
    return max((b.time - a.time, b.round) for a, b in pairwise(run.rounds()))


def tell_gaps(run: Run, events: list[tuple[float, str]]) -> None:
    """Print each gap that is worth it, with the events and the partings in it."""
    log = (run.folder / "shepherd.jsonl").read_text(errors="replace")
    for before, after in pairwise(run.rounds()):
        if after.time - before.time < WORTH_SECONDS:
            continue
        told = events + [(when, said) for when, said in lines(log) if " left" in said]
        print(f"  {after.time - before.time:.1f} s before round {after.round}:")
        for when, said in sorted(told):
            if before.time - 1.0 <= when <= after.time:
                print(f"    {when - before.time:+6.1f} s  {said}")


def lines(log: str) -> Iterator[tuple[float, str]]:
    """The shepherd's lines, with their times."""
    for line in log.splitlines():
        with suppress(ValueError):  # it was killed in the middle of it
            values = json.loads(line)
            yield float(values["time"]), str(values["text"])


def storm(
    run: FaultyRun,
    plan: list[str],
    rng: random.Random,
    flags: argparse.Namespace,
    events: list[tuple[float, str]],
    returns: Returns,
) -> Counter[str]:
    """What was done of the plan, by kind; `events` have what and when."""
    injector = Injector(run, rng, Counter())
    slots, done = Slots(run.node), Counter[str]()
    until = time.monotonic() + flags.limit
    for number, kind in enumerate(plan, 1):
        if time.monotonic() > until:
            break
        faults._pause(run, rng, flags.pause)
        if flags.islands and rng.random() < PEACE:
            all_back(run, flags.pause)
        if kind == "lie":
            lie(run, slots, rng)
        elif kind == "hang":
            victim, _ = _member(run, slots, rng)
            victim.send_signal(signal.SIGUSR1)
        elif kind == "worker":
            returns.struck(injector.strike(kind))
        else:
            injector.strike(kind)
        done[kind] += 1
        events.append((time.time(), f"DONE: {kind}"))
        if number % 20 == 0:
            gap, behind = longest_gap(run)
            at = f"round {run.rounds()[-1].round}, gap {gap:.1f} s (round {behind})"
            print(f"  {dict(done)}, {at}", flush=True)
    return done


def all_back(run: Run, longest: float) -> None:
    """Until a round has all islands, or for so many seconds."""
    since, until = time.time(), time.monotonic() + longest
    while time.monotonic() < until:
        newest = run.rounds()[-1]
        if newest.time - newest.seconds > since and newest.workers == run.wanted:
            return
        time.sleep(0.02)


def lie(run: FaultyRun, slots: Slots, rng: random.Random) -> None:
    """Have one lie, among enough that others know better, and wait for its name."""
    run.wait(run.full)
    before = len(run.said())
    victim, name = _member(run, slots, rng)
    until, again = time.monotonic() + NAMED_SECONDS, 0.0
    while name not in FOUND.findall(run.said()[before:]):
        run.check_time(until)
        if time.monotonic() > again:  # an attempt that was made anew has no lie in it
            if not victim.is_running():  # it hung before, and has ended
                victim, name = _member(run, slots, rng)
                until = time.monotonic() + NAMED_SECONDS
            victim.send_signal(signal.SIGUSR2)
            again = time.monotonic() + 5.0
        time.sleep(0.05)


def _member(
    run: FaultyRun, slots: Slots, rng: random.Random
) -> tuple[psutil.Process, str]:
    """A worker's process, and its name, once it has joined: then it may be missed."""
    while True:
        victim, text = rng.choice(faults._settled(run, slots)), run.said()
        said = re.findall(rf"worker (\S+): process {victim.pid} started", text)
        if said and f"worker {said[0]}: joined with the state" in text:
            return victim, said[0]
        time.sleep(0.1)


if __name__ == "__main__":
    main()
