"""A bigram language model in numpy that trains over a real communicator.

It stands in for a compiled bundle where the subject is the protocol: table
`[V, V]` of logits, SGD with momentum inside, DiLoCo outside. `bundle()` gives
the shepherd a manifest with its shapes. Run as a program it is a worker.
"""

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from pcp.bundle import Bundle
from pcp.manifest import (
    Collective,
    DeviceProgram,
    Function,
    Manifest,
    Mesh,
    Module,
    Parameter,
    TensorSpec,
)
from pcp.training.data.dataset import token_inputs
from pcp.training.storage.island_parts import WHOLE

VOCABULARY, BATCH, BLOCK = 128, 4, 8
OUTER_RATE, OUTER_MOMENTUM, RATE = 0.7, 0.9, 2.0

Pause = float | Callable[[], float]
"""Seconds, or what says them before each inner step."""


def _spec(name, role, shape=(VOCABULARY, VOCABULARY), dtype="f32"):
    return TensorSpec(name=name, role=role, shape=shape, dtype=dtype)


def bundle() -> bytes:
    """A training bundle without modules."""
    table, state = _spec("table", "param"), _spec("v", "state")
    data = [_spec(n, "data", (BATCH, BLOCK), "i64") for n in ("ids", "targets")]
    loss, grad = _spec("loss", "loss", ()), _spec("table", "grad")
    momentum = _spec("table", "outer")
    functions = {
        "init": Function(
            inputs=(_spec("seed", "seed", (), "i64"),), results=(table, state)
        ),
        "grad": Function(inputs=(table, *data), results=(loss, grad)),
        "apply": Function(inputs=(table, grad, state), results=(table, state)),
        "outer_step": Function(
            inputs=(
                _spec("table", "anchor"),
                table,
                momentum,
                _spec("tokens", "tokens", ()),
            ),
            results=(table, momentum),
        ),
        "eval": Function(inputs=(table, *data), results=(loss,)),
    }
    parameter = Parameter(
        name="table", shape=table.shape, dtype="f32", init="normal(0.02)"
    )
    manifest = Manifest(mode="train", functions=functions, parameters=(parameter,))
    return Bundle.build(manifest, {}).to_bytes()


def island_bundle() -> bytes:
    """The bundle for islands of tp=2, whose ranks have half of the table's columns.

    A rank sums its half with other islands, and three numbers a row within its own.
    """
    whole = Bundle.from_bytes(bundle(), source="a test").manifest
    half = (VOCABULARY, VOCABULARY // 2)

    def cut(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        table = (VOCABULARY, VOCABULARY)
        update = {"shape": half}
        return tuple(
            s.model_copy(update=update) if s.shape == table else s for s in specs
        )

    functions = {
        name: Function(inputs=cut(f.inputs), results=cut(f.results))
        for name, f in whole.functions.items()
    }
    shapes = {"workers": half, "tp": (3, VOCABULARY)}
    collectives = {
        axis: Collective(
            shape=shape,
            dtype="f32",
            kind="all_reduce",
            axes=(axis,),
            bytes=4 * math.prod(shape),
        )
        for axis, shape in shapes.items()
    }
    device = DeviceProgram(module="cpu", functions=functions, collectives=collectives)
    devices = ("mesh_0", "mesh_1")
    module = Module(
        file="modules/cpu", target="cpu", backend="llvm-cpu", driver="local-sync"
    )
    changes = {
        "programs": dict.fromkeys(devices, device),
        "modules": {"cpu": module},
        "mesh": {
            "mesh": Mesh(axes={"tp": 2}, devices=devices),
            "workers_mesh": Mesh(axes={"workers": -1}),
        },
    }
    manifest = whole.model_copy(update=changes)
    return Bundle.build(manifest, {"modules/cpu": b"no code"}).to_bytes()


class BigramTrainer:
    """`pcp.training.trainer.interface.Trainer` in numpy.

    `pause` slows each inner step.
    """

    parts = WHOLE
    axes_inside: Sequence[tuple[str, ...]] = ()
    evaluates_averages = True
    inputs = token_inputs(BATCH, BLOCK)
    batch, block = BATCH, BLOCK
    parameter_shapes = ((VOCABULARY, VOCABULARY),)
    rows: Mapping[str, int] = {}
    every_step, waited, private = False, 0.0, {}
    resumes, progress, inner_exchange = False, (), (0, None)
    seed: int | None = None
    frozen, metrics, learning_rate = {}, {}, None
    local: np.ndarray
    velocity: np.ndarray

    def __init__(self, pause: Pause = 0.0) -> None:
        self.pause = pause
        self.shared: dict[str, np.ndarray] = {}

    def fresh(self, seed):
        rng = np.random.default_rng(seed)
        table = 0.02 * rng.standard_normal((VOCABULARY, VOCABULARY))
        self.velocity = np.zeros((VOCABULARY, VOCABULARY), np.float32)
        self.shared = {
            "parameter/table": table.astype(np.float32),
            "outer/table": np.zeros_like(self.velocity),
        }

    def restore(self, snapshot, index):
        self.fresh(0)
        self.shared = {n: np.array(snapshot.get(n, a)) for n, a in self.shared.items()}
        inner = sorted(name for name in snapshot if name.startswith("inner/"))
        if inner:
            self.velocity = np.array(snapshot[inner[index % len(inner)]])

    def freeze(self, given):
        raise AssertionError

    def join(self, communicator):
        pass

    def begin(self, steps=1, weight=1.0):
        self.local = self.shared["parameter/table"].copy()

    def loss_and_gradient(self, table, batch):
        ids, targets = (each.ravel() for each in batch.tensors.values())
        logits = table[ids].astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        p = np.exp(logits)
        p /= p.sum(axis=1, keepdims=True)
        rows = np.arange(len(ids))
        loss = -np.log(p[rows, targets]).mean()
        p[rows, targets] -= 1
        gradient = np.zeros(table.shape)
        np.add.at(gradient, ids, p / len(ids))
        return loss, gradient

    def step(self, batches) -> list[np.floating]:
        time.sleep(self.pause() if callable(self.pause) else self.pause)
        pairs = [self.loss_and_gradient(self.local, batch) for batch in batches]
        mean = np.mean([gradient for _, gradient in pairs], axis=0)
        self.gradient_norm = float(np.linalg.norm(mean))
        self.velocity = (0.5 * self.velocity + mean).astype(np.float32)
        self.local = (self.local - RATE * self.velocity).astype(np.float32)
        return [np.float32(loss) for loss, _ in pairs]

    @property
    def moved(self):
        return float(np.linalg.norm(self.local - self.shared["parameter/table"]))

    def outer(self, tokens, communicator):
        anchor, momentum = self.shared.values()
        total = np.array([tokens], np.float32)
        communicator.all_reduce(total)
        delta = (anchor - self.local) * np.float32(tokens / total[0])
        communicator.all_reduce(delta)
        momentum = np.float32(OUTER_MOMENTUM) * momentum + delta
        step = delta + np.float32(OUTER_MOMENTUM) * momentum
        new = anchor - np.float32(OUTER_RATE) * step
        return {"parameter/table": new, "outer/table": momentum}

    def turn(self):
        pass

    def resume(self, weight=1.0):
        raise AssertionError

    def adopt(self, new):
        self.shared = new

    def catch_up(self, shared):
        moved = self.local - self.shared["parameter/table"]
        self.local = shared["parameter/table"] + moved
        self.shared = shared

    def inner(self):
        return {"v": self.velocity.copy()}

    def evaluate(self, batch):
        loss, _ = self.loss_and_gradient(self.shared["parameter/table"], batch)
        return float(loss)

    def close(self):
        pass


class HangingTrainer(BigramTrainer):
    """Its thread stands still in the tenth step, or outer step; the process lives."""

    def __init__(
        self, pause: Pause, hangs: str, take: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(pause)
        self._take = take
        self._hangs, self._made = hangs, Counter[str]()

    def step(self, batches):
        self._count("step")
        if self._hangs == "sending" and self._made["step"] == 10:
            self._take()
            threading.Event().wait()
        return super().step(batches)

    def outer(self, tokens, communicator):
        self._count("exchange")
        return super().outer(tokens, communicator)

    def _count(self, call: str) -> None:
        self._made[call] += 1
        if call == self._hangs and self._made[call] == 10:
            threading.Event().wait()


def taken(worker: Any) -> None:
    """Take what heartbeats are sent with, as a thread does that hangs in between."""
    worker._link._channel._connection._sending.acquire()


def main(name: str, port: str, pause: str, hangs: str = "") -> None:
    """A worker process."""
    from pcp.runtime import Endpoint
    from pcp.tools.commands.worker import end_hung

    class HangingEndpoint(Endpoint):
        def form(self, *args, **keys) -> NoReturn:
            while True:
                threading.Event().wait()

    from pcp.training.wire.client import Timing
    from pcp.training.worker.worker import Identity, Worker

    class HangingWorker(Worker):
        def _turn(self) -> NoReturn:
            while True:
                threading.Event().wait()

    def log(text):
        print(f"{time.time():.3f} {name}: {text}", flush=True)

    forms = HangingEndpoint if hangs == "forming" else Endpoint
    began = time.time()
    works = HangingWorker if hangs == "starting" else Worker
    worker = works(
        Identity(name=name, host="127.0.0.1", port=int(port)),
        forms.listen("127.0.0.1:0"),
        lambda content: HangingTrainer(float(pause), hangs, lambda: taken(worker)),
        log,
        Timing(still=2.0),
        stalled=partial(end_hung, log),
    )
    log(f"started {began:.3f}")
    log(f"ended: {worker.run()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
