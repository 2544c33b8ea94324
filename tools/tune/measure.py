"""The processor time of products, each by several schedules, in one module."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import iree.runtime as rt
import numpy as np

from pcp.compiler import emission, iree
from pcp.compiler.options import DEFAULT_OPT_LEVEL
from pcp.compiler.targets import SCHEDULE, Target
from pcp.dialect.context import parse
from pcp.errors import RuntimeFault
from pcp.passes.core.rewriting import operations
from pcp.passes.kernels.contractions import Contraction
from pcp.passes.kernels.linalg import foreign
from pcp.passes.kernels.schedule_kernels import tile
from pcp.passes.kernels.tiles import Schedule
from pcp.runtime.program.devices import open_device

ONE_THREAD = "local-sync"
CALLS, ROUNDS = 2, 3
LEAST_SECONDS = 0.002
"""A product that takes less is called again, as often as fills this time."""

FAR_BYTES = 16 << 20
"""A product's operands come from sets of this size together, which no core's own cache
holds: in a step other kernels ran since an operand was read."""

MOST_SETS = 64

HOPELESS = 1.3
"""A candidate that took so much more than the fastest of its product is left."""

CLOSE = 1e-4
"""How far results of one product may be from each other, to the largest element."""


@dataclass(frozen=True)
class Candidate:
    """A product and one way to compute it; None is IREE's own."""

    shape: Contraction
    schedule: Schedule | None


def measure(candidates: Sequence[Candidate], target: Target) -> list[float]:
    """The least seconds of a thread that a call of each takes, in order.

    All take turns. `RuntimeFault` where two ways to compute a product differ.
    """
    module, device = _compiled(candidates, target)
    operands = _operands({c.shape for c in candidates}, device)
    wanted: dict[Contraction, np.ndarray] = {}
    calls = []
    for number, candidate in enumerate(candidates):
        function, given = module[f"f{number}"], operands[candidate.shape]
        _check(candidate, np.asarray(function(*given[0])), wanted)
        calls.append((function, cycle(given)))
    best = [_seconds(function, sets, 1) for function, sets in calls]
    for _ in range(ROUNDS):
        fastest: dict[Contraction, float] = {}
        for candidate, seconds in zip(candidates, best, strict=True):
            least = fastest.get(candidate.shape, seconds)
            fastest[candidate.shape] = min(least, seconds)
        for number, call in enumerate(calls):
            if best[number] > HOPELESS * fastest[candidates[number].shape]:
                continue
            function, sets = call
            repeats = max(1, int(LEAST_SECONDS / best[number]))
            for _ in range(CALLS):
                best[number] = min(best[number], _seconds(function, sets, repeats))
    return best


def _seconds(function: Any, sets: Iterator[list[Any]], repeats: int) -> float:
    given = list(islice(sets, repeats))
    start = time.thread_time()
    for operands in given:
        function(*operands)
    return (time.thread_time() - start) / repeats or 1e-9


def _check(
    candidate: Candidate, found: np.ndarray, wanted: dict[Contraction, np.ndarray]
) -> None:
    want = wanted.setdefault(candidate.shape, found)
    error = float(np.abs(found - want).max()) / max(float(np.abs(want).max()), 1e-30)
    if not error < CLOSE:
        raise RuntimeFault(
            f"{candidate.shape}: computed by {candidate.schedule} it differs by "
            f"{error:.1e}; that is a fault of the code generator, please report it"
        )


def _operands(
    shapes: set[Contraction], device: Any
) -> dict[Contraction, list[list[Any]]]:
    """Both operands of each product, as many times as are far from a core."""
    random = np.random.default_rng(0)
    found = {}
    for shape in shapes:
        pair = [
            random.standard_normal(extents, np.float32)
            for extents in (shape.left, shape.right)
        ]
        sets = -(-FAR_BYTES // sum(array.nbytes for array in pair))
        found[shape] = [
            [rt.asdevicearray(device, array) for array in pair]
            for _ in range(min(sets, MOST_SETS))
        ]
    return found


def _compiled(candidates: Sequence[Candidate], target: Target) -> tuple[Any, Any]:
    """A function each, compiled for one thread of this processor, and its device."""
    module = parse("".join(_function(n, c.shape) for n, c in enumerate(candidates)))
    dots = [op for op in operations(module) if op.name == "stablehlo.dot_general"]
    with foreign(module.context), module.context:
        for op, candidate in zip(dots, candidates, strict=True):
            if candidate.schedule is not None:
                tile(op, candidate.shape, candidate.schedule, {})
    text = emission.target_text(module, target.without(SCHEDULE)).plain
    flags = (f"--iree-opt-level={DEFAULT_OPT_LEVEL}", *target.all_flags)
    content = iree.compile_text(text, flags, timeout=600)
    device = open_device(ONE_THREAD)
    context = rt.SystemContext(config=rt.Config(device=device.hal))
    context.add_vm_module(rt.VmModule.copy_buffer(context.instance, content))
    return context.modules.module, context.config.device


def _function(number: int, shape: Contraction) -> str:
    a, b, c = (
        f"tensor<{'x'.join(map(str, extents))}xf32>"
        for extents in (shape.left, shape.right, shape.result)
    )
    at = bool(shape.batch)
    first, second = at + (shape.form[0] == "N"), at + (shape.form[1] == "T")
    front = "batching_dims = [0] x [0], " * at
    return (
        f"func.func @f{number}(%x: {a}, %y: {b}) -> {c} {{\n"
        f"  %0 = stablehlo.dot_general %x, %y, {front}contracting_dims = "
        f"[{first}] x [{second}] : ({a}, {b}) -> {c}\n  return %0 : {c}\n}}\n"
    )
