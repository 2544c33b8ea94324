"""The outer algorithms against synchronous data parallelism: loss and bytes.

    python benchmarks/algorithms.py                    # 1 M parameters, 3 seeds
    python benchmarks/algorithms.py --quick            # a small model, one seed
    python benchmarks/algorithms.py --only ddp,diloco --seeds 1 --keep found.jsonl
    python benchmarks/algorithms.py --size rounds=120,width=48,lr=4e-3
    python benchmarks/algorithms.py --size rounds=240 \\
        --keep benchmarks/algorithms.jsonl --show      # what is in the docs

Trains the GPT of examples/models on the documentation of Python, as bytes, with 4
members: bundles compiled for this processor, trainers and communicators as in a run,
over links in memory, whose bytes are counted. All contestants see the same number of
tokens in the same order; one that trains alone makes all the steps itself. The loss is
that of held-out text at the end. With `--keep` what is done is kept, and not done
again: an interrupted comparison goes on where it was. The large one takes hours.

Learning rates were chosen for each inner optimizer, not for each algorithm; AdamW has
one where all members' gradients are one and one where members step alone.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, pstdev
from string import Template
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "models"))

from pcp.bundle import Bundle
from pcp.runtime.communicator.communicator import Communicator
from pcp.tools.support.cache_folder import cache_folder
from pcp.training.config.experiment import (
    Experiment,
)
from pcp.training.config.experiment_file import (
    parse,
)
from pcp.training.data.corpus import Corpus
from pcp.training.data.dataset import token_inputs
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.trainer.bundle_checks import plan_of
from pcp.training.trainer.load import load

MEMBERS = 4
SCHEDULE = "schedule=warmup_cosine,warmup_steps=$warmup,total_steps=$total"
ADAMW = f"adamw{{lr=$lr,weight_decay=0.1,clip_norm=1.0,{SCHEDULE}}}"
LOCAL = f"adamw{{lr=$local_lr,weight_decay=0.1,clip_norm=1.0,{SCHEDULE}}}"
MUON = f"muon{{lr=0.02,adam_lr=2e-3,weight_decay=0.1,{SCHEDULE}}}"
SIGNS = f"sgd{{lr=1e-3,{SCHEDULE}}}"


@dataclass(frozen=True)
class Size:
    """A model and how long it is trained: `rounds` of `steps` inner steps a member."""

    width: int = 128
    layers: int = 5
    heads: int = 4
    block: int = 64
    batch: int = 4
    rounds: int = 30
    steps: int = 30
    validated: int = 40
    """Batches of held-out text."""
    lr: float = 2e-3
    """AdamW's on the gradient of all members' examples."""
    local_lr: float = 1e-3
    """AdamW's where a member steps on its own examples for a round."""


QUICK = Size(
    width=32, layers=2, block=32, rounds=8, steps=30, validated=20, local_lr=2e-3
)

CONTESTANTS: dict[str, tuple[str, str, int]] = {
    "ddp": ("ddp", ADAMW, MEMBERS),
    "diloco": ("diloco{lr=0.9,momentum=0.8}", LOCAL, MEMBERS),
    "streaming-4bit": (
        "streaming_diloco{fragments=3,tau=2,alpha=0.5,wire=e3m0,lr=0.9,momentum=0.8}",
        LOCAL,
        MEMBERS,
    ),
    "average": ("average", LOCAL, MEMBERS),
    "decoupled": ("decoupled", LOCAL, MEMBERS),
    "async_diloco": ("async_diloco{lr=0.7}", LOCAL, MEMBERS),
    "async_local_sgd": ("async_local_sgd", LOCAL, MEMBERS),
    "eager": ("eager", LOCAL, MEMBERS),
    "noloco": ("noloco", LOCAL, MEMBERS),
    "ddp-muon": ("ddp", MUON, MEMBERS),
    "muloco": ("muloco", MUON, MEMBERS),
    "muloco-2bit": ("muloco{wire=2bit}", MUON, MEMBERS),
    "sparseloco": ("sparseloco", LOCAL, MEMBERS),
    "demo": ("demo", SIGNS, MEMBERS),
    "snoo-alone": ("snoo{lr=0.7,momentum=0.9}", LOCAL, 1),
}
"""Algorithm, inner optimizer and members, by name."""


@dataclass(frozen=True)
class Result:
    """One run: nats a byte of held-out text, bytes that a member sent on average."""

    name: str
    seed: int
    loss: float
    sent: float
    seconds: float
    size: dict[str, Any]


# --- one run ---


def compiled(size: Size, algorithm: str, optimizer: str) -> Bundle:
    """The bundle of a contestant."""
    import torch
    from nanogpt_small import GPT

    import pcp

    torch.manual_seed(0)
    model = GPT(size.block, 256, size.width, size.heads, size.layers)
    ids = torch.zeros((size.batch, size.block), dtype=torch.int64)
    total = size.rounds * size.steps
    steps = {"warmup": max(1, total // 20), "total": total}
    rates = {"lr": size.lr, "local_lr": size.local_lr}
    return pcp.compile(
        pcp.from_torch(model, ids, ids),
        ["cpu:host"],
        mode="train",
        optimizer=Template(optimizer).substitute(steps, **rates),
        algorithm=algorithm,
        cache=cache_folder(),
    )


def corpus(size: Size, seed: int) -> Corpus:
    """The text, cut and shuffled for a seed."""
    keys: dict[str, Any] = {
        "model_path": "-",
        "data_path": "builtin:python-docs",
        "tokenizer": "byte",
        "learning_rate": 1.0,
        "tau": size.steps,
        "outer_loop_steps": size.rounds,
        "seed": seed,
    }
    experiment: Experiment = parse(keys)
    return Corpus(experiment, token_inputs(size.batch, size.block))


class Run:
    """The members of one run, a thread each."""

    def __init__(self, code: Bundle, size: Size, members: int, seed: int) -> None:
        self._code, self._size, self._seed = code, size, seed
        self._members = members
        self._data = corpus(size, seed)
        self._group = Communicator.in_process(members, timeout=600)
        own_clocks = plan_of(code.manifest).synchronize == "asynchronous"
        self._pushes = Pushes() if own_clocks else None
        self._losses: list[float] = [float("nan")] * members
        self._faults: list[BaseException] = []

    def loss(self) -> tuple[float, float]:
        """Train; the held-out loss, as a mean over the members, and bytes of one."""
        threads = [
            threading.Thread(target=self._member, args=(rank,))
            for rank in range(self._members)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sent = sum(link.bytes_sent for link in self._group)
        if self._pushes is not None:
            sent += self._pushes.bytes_sent
        for link in self._group:
            link.close()
        if self._faults:
            raise self._faults[0]
        return mean(self._losses), sent / self._members

    def _member(self, rank: int) -> None:
        link = self._group[rank]
        try:
            with closing(load(self._code, "local-sync", None)) as trainer:
                self._train(trainer, link, rank)
        except BaseException as error:
            self._faults.append(error)
            link.abort(str(error))
            if self._pushes is not None:
                self._pushes.give_up()

    def _train(self, trainer: Any, link: Any, rank: int) -> None:
        size = self._size
        trainer.fresh(self._seed)
        for number in range(size.rounds):
            self._round(trainer, link, rank, number)
        if self._pushes is not None:
            self._pushes.last(trainer, size.rounds * self._members)
        self._losses[rank] = self._held_out(trainer)

    def _round(self, trainer: Any, link: Any, rank: int, number: int) -> None:
        size = self._size
        tokens = size.steps * size.batch * size.block
        trainer.join(link)
        trainer.begin(size.steps, tokens)
        for step in range(number * size.steps, (number + 1) * size.steps):
            trainer.turn()
            first = (step * self._members + rank) * size.batch
            positions = np.arange(first, first + size.batch)
            trainer.step([self._data.read(positions)])
        trainer.turn()
        if self._pushes is None:
            trainer.adopt(trainer.outer(tokens, link))
        else:
            self._pushes.push(trainer, tokens, number * self._members + rank)

    def _held_out(self, trainer: Any) -> float:
        count = min(self._size.validated, self._data.validation_batches)
        return mean(trainer.evaluate(self._data.validation(i)) for i in range(count))


class Pushes:
    """Merges of learners on own clocks, all as fast: one after the other.

    So each push comes as many versions late as there are others.
    """

    def __init__(self) -> None:
        self._merged = threading.Condition()
        self._newest: Arrays | None = None
        self._version, self._over = 0, False
        self.bytes_sent = 0
        """What learners fetched from the holder of the newest version."""

    def push(self, trainer: Any, tokens: int, turn: int) -> None:
        """Merge what a learner made into the newest version, when it is its turn."""
        with self._merged:
            self._fetch(trainer, turn)
            (alone,) = Communicator.in_process(1)
            with closing(alone):
                trainer.adopt(trainer.outer(tokens, alone))
            self._newest = {name: np.array(a) for name, a in trainer.shared.items()}
            self._version += 1
            self._merged.notify_all()

    def last(self, trainer: Any, pushes: int) -> None:
        """Hold what all pushes have led to."""
        with self._merged:
            self._fetch(trainer, pushes)

    def give_up(self) -> None:
        """A learner failed: no version comes any more."""
        with self._merged:
            self._over = True
            self._merged.notify_all()

    def _fetch(self, trainer: Any, version: int) -> None:
        self._merged.wait_for(
            lambda: self._over or self._version == version, timeout=600
        )
        if self._version != version:
            raise RuntimeError(f"version {version} did not come")
        if self._newest is not None:
            trainer.catch_up(self._newest)
            self.bytes_sent += sum(array.nbytes for array in self._newest.values())


def run(name: str, size: Size, seeds: Sequence[int]) -> Iterator[Result]:
    """A contestant's runs, from one bundle, each as soon as it is done."""
    algorithm, optimizer, members = CONTESTANTS[name]
    # Who trains alone makes the others' steps too: in as many rounds more.
    own = replace(size, rounds=size.rounds * MEMBERS // members)
    code = compiled(own, algorithm, optimizer)
    for seed in seeds:
        began = time.monotonic()
        loss, sent = Run(code, own, members, seed).loss()
        seconds = time.monotonic() - began
        yield Result(name, seed, loss, sent, seconds, asdict(size))


# --- all of them ---


def table(results: Sequence[Result]) -> str:
    """Loss against ddp's and bytes against ddp's, a row a contestant."""
    rows = {name: [r for r in results if r.name == name] for name in CONTESTANTS}
    base = rows["ddp"]
    lines = [
        "| algorithm | seeds | held-out loss | against ddp | sent by a worker "
        "| fewer bytes |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in rows.items():
        if found:
            losses, sent = [r.loss for r in found], mean(r.sent for r in found)
            lines.append(
                f"| {name} | {len(found)} | {_spread(losses)} "
                f"| {_against(losses, base)} | {sent / 1e6:.2f} MB "
                f"| {_fewer(sent, base)} |"
            )
    return "\n".join(lines)


def _spread(losses: Sequence[float]) -> str:
    around = f" ± {pstdev(losses):.4f}" if len(losses) > 1 else ""
    return f"{mean(losses):.4f}{around}"


def _against(losses: Sequence[float], base: Sequence[Result]) -> str:
    if not base:
        return "-"
    return f"{mean(losses) / mean(r.loss for r in base) - 1:+.1%}"


def _fewer(sent: float, base: Sequence[Result]) -> str:
    return f"{mean(r.sent for r in base) / sent:.1f}x" if base and sent else "-"


def kept(path: Path, size: Size) -> list[Result]:
    """What was done before, of this size."""
    if not path.exists():
        return []
    found = [Result(**json.loads(line)) for line in path.read_text().splitlines()]
    return [r for r in found if r.size == asdict(size)]


def changes(text: str) -> dict[str, Any]:
    """Of `rounds=120,lr=4e-3`: what is to be different of a size."""
    kinds = {name: type(value) for name, value in asdict(Size()).items()}
    pairs = [item.partition("=") for item in text.split(",") if item]
    if unknown := [name for name, _, _ in pairs if name not in kinds]:
        raise SystemExit(f"a size has no {unknown[0]!r} (it has: {', '.join(kinds)})")
    return {name: kinds[name](value) for name, _, value in pairs}


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    options = _options(arguments)
    size = replace(QUICK if options.quick else Size(), **changes(options.size))
    names = options.only.split(",") if options.only else list(CONTESTANTS)
    if unknown := [name for name in names if name not in CONTESTANTS]:
        print(f"no contestant {unknown[0]!r} (there are: {', '.join(CONTESTANTS)})")
        return 1
    path = Path(options.keep or tempfile.mkdtemp(), *([] if options.keep else ["runs"]))
    results = kept(path, size)
    for name in names:
        done = {r.seed for r in results if r.name == name}
        wanted = 0 if options.show else options.seeds
        seeds = [s for s in range(1, wanted + 1) if s not in done]
        for result in run(name, size, seeds) if seeds else []:
            with open(path, "a") as file:
                file.write(json.dumps(asdict(result)) + "\n")
            results.append(result)
            print(f"{name}, seed {result.seed}: {result.loss:.4f}", flush=True)
    print(f"\n{asdict(size)}, {MEMBERS} members\n\n{table(results)}")
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Loss and bytes of outer algorithms.")
    add = parser.add_argument
    add("--quick", action="store_true", help="a small model and few rounds")
    add("--only", help="names, separated by commas")
    add("--seeds", type=int, default=0, help="how many; default 3, or 1 with --quick")
    add("--size", default="", metavar="K=V,...", help="what differs, as rounds=120")
    add("--keep", metavar="FILE", help="what was done (JSON lines), read and written")
    add("--show", action="store_true", help="what is kept; nothing is trained")
    options = parser.parse_args(arguments)
    options.seeds = options.seeds or (1 if options.quick else 3)
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
