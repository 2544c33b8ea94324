"""What `faults` keeps about a run: its processes, its figures, who is killed when."""

import json
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import psutil

from pcp.compiler.mesh_option import parse_mesh
from pcp.errors import PcpError
from pcp.tools.commands.status import ask
from pcp.training.observe import metrics
from pcp.training.observe.orders import give
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage.island_shapes import cut_of
from pcp.training.storage.ledger import check, read
from pcp.training.storage.snapshots import shared_of

DEMO = Path(__file__).parents[1] / "examples" / "demo.json"
END_SECONDS = 120.0
KILLS_A_MINUTE = 5
"""Of one supervised process: at six crashes a minute its supervisor gives up."""


class Run:
    """One run's processes: `pcp supervise -- shepherd`, and `pcp node`."""

    def __init__(
        self, folder: Path, workers: int, spares: int = 0, **changes: object
    ) -> None:
        self.folder, self.wanted = folder / "run", workers
        values = json.loads(DEMO.read_text()) | changes
        ranks = parse_mesh(str(values["mesh"])).size if values.get("mesh") else 1
        values["model_path"] = str(DEMO.parent / values["model_path"])
        (folder / "x.json").write_text(json.dumps(values))
        self.port = _free_port()
        self.log = folder / "log"
        self._out = open(self.log, "ab")
        self._rounds: list[metrics.Round] = []
        self._read = 0
        shepherd = ["shepherd", "--config", str(folder / "x.json"), "--resume"]
        shepherd += ["--run", str(self.folder), "--port", str(self.port)]
        shepherd += ["--workers", str(workers), "--no-dashboard", "--web", "off"]
        self.shepherd = self._start("supervise", "--", *shepherd)
        node = ["--port", str(self.port), "--scale", str(workers * ranks + spares)]
        self.node = self._start(
            "node", *node, "--device", "local-sync", "--target", "cpu:host"
        )

    def _start(self, *arguments: str) -> psutil.Popen:
        command = [sys.executable, "-m", "pcp.tools.cli", *arguments]
        return psutil.Popen(command, stdout=self._out, stderr=subprocess.STDOUT)

    def close(self) -> None:
        """Leave no process behind."""
        for parent in (self.node, self.shepherd):
            for process in [*children(parent), parent]:
                kill(process)
            parent.wait(END_SECONDS)
        self._out.close()

    def status(self) -> dict[str, Any] | None:
        """What the shepherd says, or None while there is none."""
        try:
            return ask("127.0.0.1", self.port, 1.0)
        except PcpError:
            return None

    def rounds(self) -> list[metrics.Round]:
        """Committed rounds, in the order of their commits; reads what is new."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        with open(path, "rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        for values in map(json.loads, whole.splitlines()):
            if values.pop("kind") == "round":
                self._rounds.append(metrics.round_of(values))
        return self._rounds

    def validations(self) -> dict[int, float]:
        """The validation loss by round."""
        return metrics.read(self.folder / "metrics.jsonl")[1]

    def wait(
        self, done: Callable[[dict[str, Any]], bool], seconds: float = 120
    ) -> None:
        """Until `done(status)`, for a status that there is."""
        until = time.monotonic() + seconds
        while not ((status := self.status()) and done(status)):
            self.check_time(until)
            time.sleep(0.01)

    def check_time(self, until: float) -> None:
        """End the command, with the processes' last words, when it is too late."""
        if time.monotonic() > until:
            lines = self.log.read_text().splitlines()[-20:]
            raise SystemExit("\n".join([*lines, "nothing for too long: given up"]))

    def full(self, status: dict[str, Any]) -> bool:
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
        assert saved is not None, refused
        parts = cut_of(saved.info)
        assert parts.digest(shared_of(saved)) in self.digests()[saved.round]
        print(f"rounds {report.rounds}; {report.consumed} samples, each exactly once; ")
        print(f"the checkpoint of round {saved.round} is what the ledger committed")

    def digests(self) -> dict[int, set[str]]:
        """What the ledger committed, by round: twice, where a round was lost."""
        records, _ = read(self.folder / "ledger.jsonl")
        found: dict[int, set[str]] = {}
        for record in records:
            if record["kind"] == "commit":
                found.setdefault(record["round"], set()).add(record["digest"])
        return found


@contextmanager
def started(
    workers: int, keep: Path | None = None, spares: int = 0, **changes: object
) -> Iterator[Run]:
    """A run that trains, in a folder of its own, which stays if it failed.

    Of `spares` ranks none is in an island, until another one dies. With `keep` it is in
    that folder, where it goes on if it was there before.
    """
    folder = keep or Path(tempfile.mkdtemp(prefix="pcp-faults-"))
    folder.mkdir(exist_ok=True)
    run = Run(folder, workers, spares, **changes)
    try:
        run.wait(run.full, 300.0)
        yield run
    except BaseException:
        print(f"the run is in {folder}", flush=True)
        raise
    finally:
        run.close()
    if keep is None:
        shutil.rmtree(folder)


# --- who is killed, and when ---


class Slots:
    """The supervised children of one process, and when each slot's were killed."""

    def __init__(self, parent: psutil.Process) -> None:
        self._parent = parent
        self._killed: dict[str, list[float]] = {}

    def spared(self) -> list[psutil.Process]:
        """The processes whose supervisors would survive another crash."""
        now = time.monotonic()
        return [
            process
            for process in children(self._parent)
            if (slot := _slot(process)) is not None
            and sum(now - at < 60 for at in self._killed.get(slot, ())) < KILLS_A_MINUTE
        ]

    def kill(self, process: psutil.Process) -> None:
        """Kill one of them."""
        slot = _slot(process)
        kill(process)
        process.wait(END_SECONDS)
        if slot is not None:
            self._killed.setdefault(slot, []).append(time.monotonic())


def _slot(process: psutil.Process) -> str | None:
    """Which of its parent's supervisors has a process; None if it is gone."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return None
    if not words:
        return None
    flag = "--supervisor-id"
    return words[words.index(flag) + 1] if flag in words else "only"


class Injector:
    """Kills a worker or the shepherd in the state that was hit least so far.

    `fired` counts what was killed in which state. A state is one that the shepherd's
    status says a moment before; what has no status yet is starting.
    """

    patience = 1.5
    """Seconds in which the wanted state must come; after that any will do."""

    def __init__(
        self, run: Run, rng: random.Random, fired: Counter[tuple[str, str]]
    ) -> None:
        self._run, self._rng, self.fired = run, rng, fired
        self._slots = {"worker": Slots(run.node), "shepherd": Slots(run.shepherd)}
        self._seen: dict[str, set[str]] = {"worker": set(), "shepherd": set()}
        self._names: dict[int, str] = {}
        self._indices: dict[str, int] = {}
        self._heard = 0

    def strike(self, kind: str) -> int | None:
        """Kill a process of this kind, and count the state it was in.

        The index of the worker, or of its island; None: it was in no round.
        """
        began = time.monotonic()
        while True:
            self._run.check_time(began + END_SECONDS)
            states = self._states(kind)
            self._seen[kind] |= set(states.values())
            fewest = min(
                (self.fired[kind, state] for state in self._seen[kind]), default=0
            )
            late = time.monotonic() > began + self.patience
            wanted = [
                process
                for process, state in states.items()
                if late or self.fired[kind, state] <= fewest
            ]
            if wanted:
                victim = self._rng.choice(wanted)
                self._slots[kind].kill(victim)
                self.fired[kind, states[victim]] += 1
                return self.index_of(victim)
            time.sleep(0.003)

    def members(self) -> list[psutil.Process]:
        """The workers, or ranks of islands, that are in the run."""
        found = self._states("worker")
        return [p for p in found if self.index_of(p) is not None]

    def index_of(self, process: psutil.Process) -> int | None:
        """The index of the worker, or of the island, of a process; None: not known."""
        return self._indices.get(self._names.get(process.pid, ""))

    def _states(self, kind: str) -> dict[psutil.Process, str]:
        spared = self._slots[kind].spared()
        status = self._run.status()
        if kind == "shepherd":
            return dict.fromkeys(spared, shepherd_state(status))
        if status is None:
            return dict.fromkeys(spared, "without a shepherd")
        self._listen()
        rows = {
            rank: row
            for row in status["workers"]
            for rank in ([r["rank"] for r in row.get("ranks", ())] or [row["worker"]])
        }
        self._indices = {rank: row["index"] for rank, row in rows.items()}
        doing = {rank: row["doing"] for rank, row in rows.items()}
        doing |= {r["rank"]: "in no island" for r in status.get("waiting", ())}
        if status["validating"] or status["saving"]:
            aside = "between rounds, saving or evaluating"
            doing = {n: aside if d == "ready" else d for n, d in doing.items()}
        return {
            p: doing.get(self._names.get(p.pid, ""), "starting, not connected")
            for p in spared
        }

    def _listen(self) -> None:
        """Learn the names of worker processes from what they say."""
        with open(self._run.log, "rb") as file:
            file.seek(self._heard)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._heard += len(whole) + len(newline)
        pattern = rb"worker (\S+): process (\d+) started"
        for name, pid in re.findall(pattern, whole):
            self._names[int(pid)] = name.decode()


def shepherd_state(status: dict[str, Any] | None) -> str:
    """Where in the protocol a shepherd is."""
    if status is None:
        return "starting, not listening"
    aside = ", a checkpoint under way" if status["saving"] else ""
    if status["phase"] != "round":
        return ("no round under way" if status["workers"] else "nobody there") + aside
    doing = [w["doing"] for w in status["workers"]]
    joining = {"waiting", "restoring"} & set(doing)
    aside += ", one joins" if joining else ""
    for stage in ("prepared", "exchanging"):
        if stage in doing:
            return f"round: some {stage}{aside}"
    return f"round: all computing{aside}"


@dataclass
class Parts:
    """What is kept of a storm that is made in several parts."""

    path: Path
    fired: Counter[tuple[str, str]] = field(default_factory=Counter)
    times: list[tuple[float, float]] = field(default_factory=list)
    """When parts began and ended."""
    audited: int = 0

    @classmethod
    def read(cls, path: Path) -> Self:
        """Those that were made before, if any."""
        if not path.exists():
            return cls(path)
        values = json.loads(path.read_text())
        fired = Counter({(kind, state): n for kind, state, n in values["fired"]})
        times = [(began, end) for began, end in values["times"]]
        return cls(path, fired, times, values["audited"])

    @property
    def kills(self) -> int:
        """How many there were."""
        return self.fired.total()

    @property
    def seconds(self) -> float:
        """Of all parts."""
        return sum(end - began for began, end in self.times)

    def save(self, began: float, audited: int = 0) -> None:
        """The part that began then has come this far."""
        self.times = [t for t in self.times if t[0] != began] + [(began, time.time())]
        self.audited += audited
        fired = [[*place, count] for place, count in self.fired.items()]
        values = {"fired": fired, "times": self.times, "audited": self.audited}
        self.path.write_text(json.dumps(values))

    def stalls(self, rounds: Sequence[metrics.Round]) -> tuple[float, float]:
        """The longest round, and the longest time in a part without a commit."""
        longest, gaps = 0.0, [0.0]
        for began, end in self.times:
            inside = [r for r in rounds if began <= r.time <= end]
            longest = max([longest, *(r.seconds for r in inside)])
            times = [began, *(r.time for r in inside), end]
            gaps += [b - a for a, b in pairwise(times)]
        return longest, max(gaps)


# --- processes ---


def children(parent: psutil.Process) -> list[psutil.Process]:
    """The living ones."""
    try:
        return [p for p in parent.children() if p.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []


def kill(process: psutil.Process) -> None:
    """SIGKILL, if it is still there."""
    try:
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        pass


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
