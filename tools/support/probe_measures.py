"""What `pcp probe` measures: programs as pcp compiles them, and messages.

Of several runs the lower quartile counts: what else a machine does only adds. Rates
are in operations or bytes a second.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import combinations
from typing import Any

import numpy as np

from pcp.bundle import Bundle
from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.errors import CompileError
from pcp.runtime.communicator.communicator import Communicator
from pcp.runtime.program.executor import Program
from pcp.runtime.program.mesh_groups import MeshGroups

#: Side of the matrices, elements that are moved, dispatches in a row.
SIDE, MOVED, CHAIN = 512, 8 << 20, 64
#: Bytes of a small and of a large message.
SMALL, LARGE = 64, 8 << 20
DTYPES = ("f32", "bf16")
#: Elements of a small and of a large sum, and how many sums programs have.
EXCHANGED, ROUNDS = (16, 1 << 20), (1, 9)


def compiled(text: str, target: str, mesh: str | None = None) -> Bundle:
    """A program for one target; raises `CompileError` where IREE cannot."""
    options = CompileOptions(
        targets=(target,), mode="forward", source="probe", mesh=mesh
    )
    return driver.compile(parse(text, source="probe"), options)


def duration(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def quartile(durations: Sequence[float]) -> float:
    """The lower one."""
    return sorted(durations)[len(durations) // 4]


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


def device_facts(
    world: Communicator, target: str, device: str, seconds: float, turns: list[int]
) -> dict[str, Any]:
    """Throughput by type, memory bandwidth, what a dispatch costs; and rates alone.

    Devices of one machine share it: they are measured at the same time, and one after
    the other; `turns` says in which turn each of the world is alone on its machine.
    A type that IREE cannot compile for the target is left out.
    """
    with ExitStack() as stack:
        calls = _programs(stack, target, device)
        beside, alone = _rounds(world, calls, seconds, turns)
    facts = _rates(beside)
    overhead = max(0.0, beside["long"] - beside["short"]) / (CHAIN - CHAIN // 2)
    facts["overhead_ns"] = overhead * 1e9
    if alone:  # Never slower than beside the others, whatever else the machine did.
        facts["alone"] = _rates({n: min(t, beside[n]) for n, t in alone.items()})
    return facts


def _rates(took: dict[str, float]) -> dict[str, Any]:
    throughput = {t: 2 * SIDE**3 / took[t] for t in DTYPES if t in took}
    return {"throughput": throughput, "membw": 3 * 4 * MOVED / took["membw"]}


def _programs(
    stack: ExitStack, target: str, device: str
) -> dict[str, Callable[[], object]]:
    """What is run on one device, compiled and loaded."""
    texts = {dtype: matmul(dtype) for dtype in DTYPES}
    texts["membw"] = addition()
    texts |= {"long": chain(CHAIN), "short": chain(CHAIN // 2)}
    calls = {}
    for name, text in texts.items():
        try:
            bundle = compiled(text, target)
        except CompileError:
            if name in DTYPES[1:]:
                continue
            raise
        calls[name] = _call(stack, bundle, device)
    return calls


def _call(stack: ExitStack, bundle: Bundle, device: str) -> Callable[[], object]:
    """One call of a program, its arguments on the device."""
    program = stack.enter_context(Program.load(bundle, device=device))
    spec = program.manifest.function("main").inputs
    arrays = [
        program.to_device(_ones(program, s.shape, s.dtype), s.dtype) for s in spec
    ]
    main = program["main"]
    return lambda: main(*arrays, device_arrays=True)


def _ones(program: Program, shape: tuple[int, ...], dtype: str) -> Any:
    from pcp.runtime.memory.dtypes import numpy_dtype

    return np.full(shape, 0.001, np.float32).astype(numpy_dtype(dtype))


def _rounds(
    world: Communicator,
    calls: dict[str, Callable[[], object]],
    seconds: float,
    turns: list[int],
) -> tuple[dict[str, float], dict[str, float]]:
    """How long each call takes beside the others', and alone (empty: never beside).

    Both in every round, so that what else the machine does meets them alike.
    """
    last = max(turns)
    beside: dict[str, list[float]] = {name: [] for name in calls}
    alone: dict[str, list[float]] = {name: [] for name in calls}

    def once() -> float:
        start = time.perf_counter()
        for turn in (None, *(range(last + 1) if last else ())):
            world.barrier(tag="measure")
            if turn in (None, turns[world.rank]):
                found = beside if turn is None else alone
                for name, call in calls.items():
                    found[name].append(duration(call))
        return time.perf_counter() - start

    once()
    for found in (beside, alone):
        for durations in found.values():
            durations.clear()
    for _ in range(_count(world, once(), len(calls) * seconds)):
        once()
    return (
        {name: quartile(found) for name, found in beside.items()},
        {name: quartile(found) for name, found in alone.items() if found},
    )


def _count(world: Communicator, once: float, seconds: float) -> int:
    """How often all do what takes so long, in about so many seconds."""
    longest = float(world.all_reduce(np.array([once]), op="max", tag="longest")[0])
    return int(np.clip(seconds / longest, 5, 200))


# --- collectives of programs ---


def sums(members: int, elements: int, rounds: int) -> str:
    """Each round sums a tensor over the members, and adds what came out to it."""
    t, row = f"tensor<{members}x{elements}xf32>", f"tensor<{elements}xf32>"
    lines = [
        f"""
  %z{i} = stablehlo.constant dense<0.0> : tensor<f32>
  %s{i} = stablehlo.reduce(%x{i} init: %z{i}) applies stablehlo.add
      across dimensions = [0] : ({t}, tensor<f32>) -> {row}
  %b{i} = stablehlo.broadcast_in_dim %s{i}, dims = [1] : ({row}) -> {t}
  %x{i + 1} = stablehlo.add %x{i}, %b{i} : {t}"""
        for i in range(rounds)
    ]
    return f"""
func.func @main(%x0: {t} {{pcp.name = "x", pcp.role = "data"}}) -> {t} {{
{"".join(lines)}
  return %x{rounds} : {t}
}}"""


def exchange(
    world: Communicator, target: str, device: str, seconds: float, membw: float
) -> dict[str, float]:
    """What a collective costs a device besides the wire, each time and by bytes.

    Programs with one and with several sums differ by what a sum takes in a program;
    the communicator's own sums of the same tensors, and the additions, are taken off.
    """
    small, large = (
        _besides(world, target, device, n, seconds, membw) for n in EXCHANGED
    )
    bytes_ = 2 * 4 * (EXCHANGED[1] - EXCHANGED[0])
    found = {"exchange_ns": max(0.0, small) * 1e9}
    if large > small:
        found["exchange_bw"] = bytes_ / (large - small)
    return found


def _besides(
    world: Communicator,
    target: str,
    device: str,
    elements: int,
    seconds: float,
    membw: float,
) -> float:
    """Seconds of one sum in a program beyond the communicator's and the addition.

    The slowest member's: the others wait for it.
    """
    array = np.zeros(elements, np.float32)
    with ExitStack() as stack:
        few, many = (
            stack.enter_context(_sums(world, target, device, elements, rounds))
            for rounds in ROUNDS
        )
        calls = [few, many, lambda: world.all_reduce(array, tag="bare")]
        one, several, bare = _in_turn(world, calls, seconds)
    in_program = (several - one) / (ROUNDS[1] - ROUNDS[0])
    own = np.array([in_program - bare - 3 * 4 * elements / membw])
    return float(world.all_reduce(own, op="max", tag="besides")[0])


def _in_turn(
    world: Communicator, calls: Sequence[Callable[[], object]], seconds: float
) -> list[float]:
    """How long each takes, called in turn and by all members equally often."""
    once = sum(max(duration(call), duration(call)) for call in calls)
    count = _count(world, once, 3 * seconds)
    found = [[duration(call) for call in calls] for _ in range(count)]
    return [quartile(column) for column in zip(*found, strict=True)]


@contextmanager
def _sums(
    world: Communicator, target: str, device: str, elements: int, rounds: int
) -> Iterator[Callable[[], object]]:
    """A program that exchanges, ready to be called by all members."""
    text = sums(world.world_size, elements, rounds)
    bundle = compiled(text, target, mesh=f"dp={world.world_size}")
    with (
        closing(MeshGroups.of(world, bundle.manifest)) as groups,
        Program.load(bundle, device=device, communicator=groups) as program,
    ):
        given = program.to_device(np.full((1, elements), 0.001, np.float32), "f32")
        main = program["main"]
        yield lambda: main(given, device_arrays=True)


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
    """How long an exchange of so many bytes takes; the slower end's counts.

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
    own = quartile([once() for _ in range(count)]) if world.rank in pair else 0.0
    if world.rank not in pair:
        for _ in range(count):
            once()
    return float(world.all_reduce(np.array([own]), op="max")[0])
