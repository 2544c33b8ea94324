"""Training while its processes are killed, and for how long it takes to mend.

    python benchmarks/faults.py storm      200 workers and 20 shepherds killed at random
    python benchmarks/faults.py restarts   50 workers killed, one after another
    python benchmarks/faults.py soak       5,000 rounds with churn: what grows?

All run the demo's model as a user does: a supervised shepherd and a node manager
with its workers, processes of this machine, killed by SIGKILL. The injector says in
which phase of a round each kill hit. The ledger is checked at the end, and the last
checkpoint must be the state the ledger committed. Needs psutil.
"""

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from pcp.errors import PcpError
from pcp.tools.control import give
from pcp.tools.status import ask
from pcp.training import checkpoint as checkpoints
from pcp.training import metrics, tensors
from pcp.training.ledger import check, read
from pcp.training.recovery import shared_of

DEMO = Path(__file__).parents[1] / "examples" / "demo.json"
END_SECONDS = 120.0


class Run:
    """One run's processes: `pcp supervise -- shepherd`, and `pcp node`."""

    def __init__(self, folder: Path, workers: int, **changes: object) -> None:
        self.folder, self.wanted = folder / "run", workers
        values = json.loads(DEMO.read_text()) | changes
        values["model_path"] = str(DEMO.parent / values["model_path"])
        (folder / "x.json").write_text(json.dumps(values))
        self.port = _free_port()
        self._log = open(folder / "log", "ab")
        shepherd = ["shepherd", "--config", str(folder / "x.json"), "--resume"]
        shepherd += ["--run", str(self.folder), "--port", str(self.port)]
        shepherd += ["--workers", str(workers), "--no-dashboard", "--web", "off"]
        self.shepherd = self._start("supervise", "--", *shepherd)
        node = ["--port", str(self.port), "--scale", str(workers)]
        self.node = self._start("node", *node, "--device", "local-sync")

    def _start(self, *arguments: str) -> psutil.Popen:
        command = [sys.executable, "-m", "pcp.tools.cli", *arguments]
        return psutil.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)

    def close(self) -> None:
        """Leave no process behind."""
        for parent in (self.node, self.shepherd):
            for process in [*_children(parent), parent]:
                _kill(process)
        self._log.close()

    def status(self) -> dict | None:
        """What the shepherd says, or None while there is none."""
        try:
            return ask("127.0.0.1", self.port, 1.0)
        except PcpError:
            return None

    def rounds(self) -> list[metrics.Round]:
        """Committed rounds, in order."""
        path = self.folder / metrics.FILE_NAME
        return metrics.read(path)[0] if path.exists() else []

    def wait(self, done, seconds: float = 120.0) -> None:
        """Until `done(status)`, for a status that there is."""
        until = time.monotonic() + seconds
        while not ((status := self.status()) and done(status)):
            if time.monotonic() > until:
                lines = Path(self._log.name).read_text().splitlines()[-20:]
                raise SystemExit("\n".join([*lines, f"nothing for {seconds:.0f} s"]))
            time.sleep(0.01)

    def full(self, status: dict) -> bool:
        """Whether all workers train."""
        ready = [w for w in status["workers"] if w["state"] == "ready"]
        return len(ready) == self.wanted and status["loss"] is not None

    def finish(self) -> None:
        """Save and end the run, then prove what must be true of it."""
        until = time.monotonic() + END_SECONDS
        while True:
            try:
                give(self.folder, {"action": "cancel"}, None, 5.0)
                break
            except PcpError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)
        self.shepherd.wait(END_SECONDS)
        report = check(self.folder / "ledger.jsonl")
        saved, refused = checkpoints.newest(self.folder, report.rounds)
        records, _ = read(self.folder / "ledger.jsonl")
        digests = {r["round"]: r["digest"] for r in records if r["kind"] == "commit"}
        assert saved is not None, refused
        assert tensors.digest(shared_of(saved)) == digests[saved.round]
        print(f"rounds {report.rounds}; {report.consumed} samples, each exactly once; ")
        print(f"the checkpoint of round {saved.round} is what the ledger committed")


@contextmanager
def started(workers: int, **changes: object) -> Iterator[Run]:
    """A run that trains, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="pcp-faults-") as folder:
        run = Run(Path(folder), workers, **changes)
        try:
            run.wait(run.full, 300.0)
            yield run
        finally:
            run.close()


def storm(flags: argparse.Namespace) -> None:
    """Kills at random moments, whatever goes on."""
    rng, fired = random.Random(flags.seed), Counter()
    plan = ["worker"] * flags.kills + ["shepherd"] * flags.shepherds
    rng.shuffle(plan)
    with started(flags.workers, **_endless(tau=5)) as run:
        began = time.monotonic()
        for number, kind in enumerate(plan, 1):
            time.sleep(rng.uniform(0.0, 2 * flags.pause))
            parent = run.node if kind == "worker" else run.shepherd
            victims = _children(parent)
            while not victims:  # its supervisor is starting it
                time.sleep(0.02)
                victims = _children(parent)
            status = run.status()
            _kill(rng.choice(victims))
            fired[f"{kind}, {_moment(status)}"] += 1
            if number % 20 == 0:
                reached = run.rounds()[-1].round
                print(f"  {number} kills, round {reached}", flush=True)
        run.wait(run.full)
        seconds = time.monotonic() - began
        for moment, count in sorted(fired.items()):
            print(f"  killed {count:4} times: {moment}")
        longest = max(r.seconds for r in run.rounds())
        print(f"{sum(fired.values())} kills in {seconds:.0f} s; longest round", end=" ")
        print(f"{longest:.1f} s")
        run.finish()


def restarts(flags: argparse.Namespace) -> None:
    """From a worker's death to the commit of a round that all workers made."""
    rng, took, back = random.Random(flags.seed), [], []
    with started(flags.workers, **_endless(tau=5)) as run:
        for _ in range(flags.kills):
            run.wait(run.full)
            time.sleep(rng.uniform(0.5, 1.5))
            died = time.time()
            _kill(rng.choice(_children(run.node)))
            run.wait(lambda status: len(status["workers"]) < run.wanted)
            run.wait(run.full)
            back.append(time.time() - died)
            until = time.monotonic() + 60
            while True:
                made = [
                    r for r in run.rounds() if r.time > died and r.workers == run.wanted
                ]
                if made and made[0].time > died + back[-1] * 0.5:
                    break
                assert time.monotonic() < until
                time.sleep(0.01)
            took.append(made[0].time - died)
        _quantiles("ready again", back)
        _quantiles("first round with it committed", took)
        _quantiles("a round", [r.seconds for r in run.rounds()])
        run.finish()


def soak(flags: argparse.Namespace) -> None:
    """Rounds of one step with churn; memory, files and threads of all processes."""
    rng = random.Random(flags.seed)
    changes = _endless(tau=1, effective_batch_size=None, checkpoint_every=100)
    with started(flags.workers, **changes) as run:
        seen: dict[str, list[tuple[int, int, int]]] = {"shepherd": [], "worker": []}
        steady = _children(run.node)[0]  # never killed
        reached, mark = 0, 0
        while reached < flags.rounds:
            time.sleep(0.2)
            rounds = run.rounds()
            reached = rounds[-1].round if rounds else 0
            if reached < mark:
                continue
            mark = reached + max(1, flags.rounds // 100)
            seen["shepherd"].append(_usage(_children(run.shepherd)[0]))
            seen["worker"].append(_usage(steady))
            others = [p for p in _children(run.node) if p != steady]
            if others:
                _kill(rng.choice(others))
        for name, usage in seen.items():
            half = len(usage) // 2
            for what, values in zip(
                ("RSS, MB", "files", "threads"), zip(*usage, strict=True), strict=True
            ):
                middle, end = statistics.median(values[half : -half // 2]), values[-1]
                print(f"  {name}: {what:8} start {values[0]}", end="")
                print(f"  second half {middle:.0f}  end {end}")
        run.finish()


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


def _moment(status: dict | None) -> str:
    """Where in the protocol a kill hits, by the last status."""
    if status is None:
        return "no shepherd"
    states = {w["state"] for w in status["workers"]}
    if status["phase"] != "round":
        return f"between rounds ({', '.join(sorted(states)) or 'nobody'})"
    joining = "; one joins" if states - {"ready"} else ""
    some = "some prepared" if status["prepared"] else "computing or exchanging"
    return f"in a round, {some}{joining}"


def _children(parent: psutil.Process) -> list[psutil.Process]:
    try:
        return [p for p in parent.children() if p.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        pass


def _usage(process: psutil.Process) -> tuple[int, int, int]:
    with process.oneshot():
        rss = process.memory_info().rss // 1_000_000
        return rss, process.num_fds(), process.num_threads()


def _quantiles(what: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    last = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    middle = statistics.median(ordered)
    print(f"  {what}: median {middle:.2f} s, 95 % {last:.2f} s, n {len(ordered)}")


def _free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("storm", "restarts", "soak"))
    parser.add_argument("--kills", type=int, help="workers; default 200, restarts: 50")
    parser.add_argument("--shepherds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5000, help="of the soak")
    parser.add_argument("--pause", type=float, default=3.5, help="mean, between kills")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    flags.kills = flags.kills or (50 if flags.what == "restarts" else 200)
    {"storm": storm, "restarts": restarts, "soak": soak}[flags.what](flags)


if __name__ == "__main__":
    main()
