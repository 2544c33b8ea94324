"""What `pcp probe` measures: programs as pcp compiles them, and messages.

Of several runs the median counts. Rates are in operations or bytes a second.
"""

import time
from collections.abc import Callable, Iterator
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np

from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import CompileError
from pcp.runtime.communicator import Communicator
from pcp.runtime.executor import Program

#: Side of the matrices, elements that are moved, dispatches in a row.
SIDE, MOVED, CHAIN = 512, 8 << 20, 64
#: Bytes of a small and of a large message.
SMALL, LARGE = 64, 8 << 20
DTYPES = ("f32", "bf16")


def compiled(text: str, target: str) -> Bundle:
    """A program for one target; raises `CompileError` where IREE cannot."""
    options = CompileOptions(targets=(target,), mode="forward", source="probe")
    return driver.compile(parse(text, source="probe"), options)


def typical(work: Callable[[], object], seconds: float) -> float:
    """The median duration of a call, tried for about so long and at least 5 times."""
    work()
    found: list[float] = []
    while len(found) < 5 or sum(found) < seconds:
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return median(found)


# --- one device ---


def matmul(dtype: str) -> str:
    """A product of two square matrices."""
    t = f"tensor<{SIDE}x{SIDE}x{dtype}>"
    return f"""
func.func @main(%a: {t}, %b: {t}) -> {t} {{
  %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({t}, {t}) -> {t}
  return %c : {t}
}}"""


def addition() -> str:
    """Two large tensors are read, one is written."""
    t = f"tensor<{MOVED}xf32>"
    return f"""
func.func @main(%a: {t}, %b: {t}) -> {t} {{
  %c = stablehlo.add %a, %b : {t}
  return %c : {t}
}}"""


def chain(length: int) -> str:
    """Small products, each of the one before: nothing but dispatches."""
    t = "tensor<8x8xf32>"
    lines = [
        f"  %{i + 1} = stablehlo.dot_general %{i}, %w, contracting_dims = [1] x [0]"
        f" : ({t}, {t}) -> {t}"
        for i in range(length)
    ]
    body = "\n".join(lines).replace("%0,", "%x,")
    return f"""
func.func @main(%x: {t}, %w: {t}) -> {t} {{
{body}
  return %{length} : {t}
}}"""


def run_seconds(text: str, target: str, device: str, seconds: float) -> float:
    """How long one call of a program takes, its arguments on the device."""
    with Program.load(compiled(text, target), device=device) as program:
        spec = program.manifest.function("main").inputs
        arrays = [
            program.to_device(_ones(program, s.shape, s.dtype), s.dtype) for s in spec
        ]
        main = program["main"]
        return typical(lambda: main(*arrays, device_arrays=True), seconds)


def _ones(program: Program, shape: tuple[int, ...], dtype: str) -> Any:
    from pcp.runtime.dtypes import numpy_dtype

    return np.full(shape, 0.001, np.float32).astype(numpy_dtype(dtype))


def device_facts(
    target: str, device: str, seconds: float, together: Callable[[], object]
) -> dict[str, Any]:
    """Throughput by type, memory bandwidth, overhead of a dispatch.

    `together` is called before each measurement: devices of one machine share it,
    so they are measured at the same time. A type that IREE cannot compile for the
    target is left out.
    """
    throughput = {}
    for dtype in DTYPES:
        together()
        try:
            took = run_seconds(matmul(dtype), target, device, seconds)
        except CompileError:
            if dtype == DTYPES[0]:
                raise
            continue
        throughput[dtype] = 2 * SIDE**3 / took
    together()
    moved = 3 * 4 * MOVED / run_seconds(addition(), target, device, seconds)
    together()
    long, short = (
        run_seconds(chain(n), target, device, seconds) for n in (CHAIN, CHAIN // 2)
    )
    overhead = max(0.0, (long - short) / (CHAIN - CHAIN // 2)) * 1e9
    return {"throughput": throughput, "membw": moved, "overhead_ns": overhead}


# --- what connects them ---


def links(world: Communicator, seconds: float) -> Iterator[dict[str, Any]]:
    """Bandwidth and latency of each pair while it exchanges, the others idle."""
    for pair in combinations(range(world.world_size), 2):
        small = _exchange(world, pair, SMALL, seconds)
        large = _exchange(world, pair, LARGE, seconds)
        bandwidth = (LARGE - SMALL) / max(large - small, 1e-9)
        yield {"ends": pair, "bandwidth": bandwidth, "latency_ns": small * 1e9}


def _exchange(
    world: Communicator, pair: tuple[int, int], size: int, seconds: float
) -> float:
    """How long an exchange of so many bytes takes; the slower end's median counts.

    All members make the same number of exchanges, as many as the pair does in about
    `seconds`.
    """
    a, b = pair
    array = np.zeros(size, np.uint8)

    def once() -> float:
        start = time.perf_counter()
        world.permute(array, [(a, b), (b, a)], tag="probe")
        return time.perf_counter() - start

    first = np.array([max(once(), once())])
    count = int(np.clip(seconds / world.all_reduce(first, op="max")[0], 5, 1000))
    own = median(once() for _ in range(count)) if world.rank in pair else 0.0
    if world.rank not in pair:
        for _ in range(count):
            once()
    return float(world.all_reduce(np.array([own]), op="max")[0])
