"""Models with closed forms for tests of outer algorithms, and rounds of them.

Two parameters, `h.0.w` and `h.1.v`, of T numbers each, that begin with zeros; the data
are ids and targets `[B, T]`, which stand for x = ids / 128 and y = targets / 128.

    linear       mean_b (w·x_b + v·y_b)                 gradients mean x and mean y
    quadratic    mean_b (|w - x_b|² + |v - y_b|²) / 2   gradients w - mean x, v - mean y
"""

import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from helpers.models.token_batches import pair, token_batch

from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.runtime.communicator.communicator import Communicator
from pcp.training.data.dataset import Batch
from pcp.training.storage.safetensors_io import digest
from pcp.training.storage.state_names import PARAMETER
from pcp.training.trainer.load import load

BATCH, BLOCK = 2, 300
NAMES = ("h.0.w", "h.1.v")
RATE = 0.125  # of the inner optimizer

_HEAD = """
func.func @main(
    %w: tensor<{T}xf32> {{pcp.init = "zeros",
        pcp.name = "h.0.w", pcp.role = "param"}},
    %v: tensor<{T}xf32> {{pcp.init = "zeros",
        pcp.name = "h.1.v", pcp.role = "param"}},
    %ids: tensor<{B}x{T}xi64> {{pcp.name = "ids", pcp.role = "data"}},
    %targets: tensor<{B}x{T}xi64> {{pcp.name = "targets", pcp.role = "data"}})
    -> tensor<f32> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %unit = stablehlo.constant dense<0.0078125> : tensor<{B}x{T}xf32>
  %share = stablehlo.constant dense<{share}> : tensor<f32>
  %0 = stablehlo.convert %ids : (tensor<{B}x{T}xi64>) -> tensor<{B}x{T}xf32>
  %1 = stablehlo.convert %targets : (tensor<{B}x{T}xi64>) -> tensor<{B}x{T}xf32>
  %x = stablehlo.multiply %0, %unit : tensor<{B}x{T}xf32>
  %y = stablehlo.multiply %1, %unit : tensor<{B}x{T}xf32>
  %ww = stablehlo.broadcast_in_dim %w, dims = [1]
      : (tensor<{T}xf32>) -> tensor<{B}x{T}xf32>
  %vv = stablehlo.broadcast_in_dim %v, dims = [1]
      : (tensor<{T}xf32>) -> tensor<{B}x{T}xf32>
"""
_LINEAR = """
  %p = stablehlo.multiply %ww, %x : tensor<{B}x{T}xf32>
  %q = stablehlo.multiply %vv, %y : tensor<{B}x{T}xf32>
"""
_QUADRATIC = """
  %half = stablehlo.constant dense<0.5> : tensor<{B}x{T}xf32>
  %d = stablehlo.subtract %ww, %x : tensor<{B}x{T}xf32>
  %e = stablehlo.subtract %vv, %y : tensor<{B}x{T}xf32>
  %dd = stablehlo.multiply %d, %d : tensor<{B}x{T}xf32>
  %ee = stablehlo.multiply %e, %e : tensor<{B}x{T}xf32>
  %p = stablehlo.multiply %dd, %half : tensor<{B}x{T}xf32>
  %q = stablehlo.multiply %ee, %half : tensor<{B}x{T}xf32>
"""
_TAIL = """
  %s = stablehlo.add %p, %q : tensor<{B}x{T}xf32>
  %sum = stablehlo.reduce(%s init: %zero) applies stablehlo.add
      across dimensions = [0, 1]
      : (tensor<{B}x{T}xf32>, tensor<f32>) -> tensor<f32>
  %loss = stablehlo.multiply %sum, %share : tensor<f32>
  return %loss : tensor<f32>
}}"""


def text(kind: str) -> str:
    """The model as MLIR."""
    body = {"linear": _LINEAR, "quadratic": _QUADRATIC}[kind]
    return (_HEAD + body + _TAIL).format(B=BATCH, T=BLOCK, share=1 / BATCH)


@cache
def bundle(kind: str, algorithm: str, optimizer: str = f"sgd{{lr={RATE}}}") -> Bundle:
    """A training bundle for this machine, made once in a process."""
    options = CompileOptions(
        targets=("cpu",), mode="train", optimizer=optimizer, algorithm=algorithm
    )
    return driver.compile(parse(text(kind)), options)


def batches(steps: int, worker: int, seed: int = 0) -> list[Batch]:
    """One batch a step, another for each worker."""
    draw = np.random.default_rng([seed, worker])
    shape = (BATCH, BLOCK)
    return [
        token_batch(draw.integers(0, 128, shape), draw.integers(0, 128, shape))
        for _ in range(steps)
    ]


def gradients(batch: Batch) -> dict[str, np.ndarray]:
    """Of the linear model, by parameter; float32 and exact."""
    scale, (ids, targets) = np.float32(1 / 128), pair(batch)
    return {
        "h.0.w": (ids.mean(0) * scale).astype(np.float32),
        "h.1.v": (targets.mean(0) * scale).astype(np.float32),
    }


def play(
    code: Bundle,
    data: Sequence[Sequence[Batch]],
    rounds: int,
    *,
    tokens: Sequence[int] | None = None,
    seed: int = 3,
    watch: Callable[[Any, int], Any] = lambda trainer, number: None,
    prepare: Callable[[Any, int], None] = lambda trainer, rank: None,
) -> list[list[Any]]:
    """Rounds of a group of trainers, one for each of `data`, over links in memory.

    `data[m]` are the batches of member m, cut into rounds of equal length. Gives for
    each member, round by round, what `watch` saw, or the state all agree on.
    `prepare` may change a trainer before it begins.
    """
    members = len(data)
    group = Communicator.in_process(members, timeout=30)
    seen: list[list[Any]] = [[] for _ in data]
    faults: list[BaseException] = []

    def work(rank: int) -> None:
        trainer = load(code, "local-sync", None)
        prepare(trainer, rank)
        steps = len(data[rank]) // rounds
        weight = (tokens or [1] * members)[rank]
        try:
            trainer.fresh(seed)
            for number in range(rounds):
                trainer.join(group[rank])
                trainer.begin(steps, weight)
                for batch in data[rank][number * steps : (number + 1) * steps]:
                    trainer.turn()
                    trainer.step([batch])
                trainer.turn()
                trainer.adopt(trainer.outer(weight, group[rank]))
                found = watch(trainer, number)
                seen[rank].append(dict(trainer.shared) if found is None else found)
            group[rank].barrier()
        except BaseException as error:
            faults.append(error)
            group[rank].abort(str(error))
        finally:
            group[rank].close()
            trainer.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(members)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a member hangs"
    if faults:
        raise faults[0]
    return seen


def parameters(state: dict[str, np.ndarray]) -> np.ndarray:
    """All parameters of a state in one row."""
    names = sorted(name for name in state if name.startswith(PARAMETER))
    return np.concatenate([state[name].ravel() for name in names])


def replica(trainer: Any, number: int) -> np.ndarray:
    """A worker's own parameters after a round, float64, whoever else has them."""
    mine, shared = trainer.private, trainer.shared
    own = [mine.get(f"replica.{n}", shared.get(PARAMETER + n)) for n in NAMES]
    return np.concatenate(own).astype(np.float64)


def same_bits(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Whether two states have the same names and bytes."""
    return digest(one) == digest(other)
