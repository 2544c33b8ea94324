"""Whether all members of a group meet the same collectives in the same order.

After `pcp-partition` a module holds one module for each device, under the
device's name. Two devices that share a group must run, in each function, the
same sequence of the collectives they share, and no round of devices may wait for
each other.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from math import prod

from pcp.dialect.base import integers, strings, text
from pcp.dialect.bindings import ir
from pcp.passes.analysis.deadlock import check_deadlock
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import device_modules, functions

Fail = Callable[[ir.Operation, str], None]
Meshes = dict[str, tuple[dict[str, int], list[str]]]
# In a start, the order that counts is that of the start.
SHARED = "pcp.all_reduce pcp.reduce_scatter pcp.all_gather pcp.all_to_all".split()
SHARED += (
    "pcp.broadcast pcp.permute pcp.sync pcp.param_sync pcp.parity pcp.outer".split()
)
COMMUNICATING = {*SHARED, "pcp.send", "pcp.recv", "pcp.wait"}


def check_member_order(module: ir.Module, meshes: Meshes, fail: Fail) -> None:
    """Call `fail` at the first op that another member does not meet so."""
    devices = {d for _, members in meshes.values() for d in members}
    programs = _programs(module, devices)

    def group_of(op: ir.Operation, device: str) -> set[str]:
        return _group(op, device, meshes)

    for function in sorted({name for program in programs.values() for name in program}):
        ops = {device: programs[device].get(function, []) for device in programs}
        for pair in combinations(programs, 2):
            _compare(function, pair, _shared(ops, pair, group_of), fail)
        check_deadlock(ops, group_of, fail)


def _shared(
    ops: Mapping[str, Sequence[ir.Operation]],
    pair: tuple[str, str],
    group_of: Callable[[ir.Operation, str], set[str]],
) -> list[list[ir.Operation]]:
    """The collectives of each of two devices that the other takes part in."""
    return [
        [op for op in ops[a] if b in group_of(op, a)] for a, b in (pair, pair[::-1])
    ]


def _programs(
    module: ir.Module, devices: set[str]
) -> dict[str, dict[str, list[ir.Operation]]]:
    """The collectives of each function of each device's module, in order."""
    return {
        name: {symbol_name(f): _collectives(f) for f in functions(home)}
        for name, home in device_modules(module).items()
        if name in devices
    }


def _collectives(function: ir.Operation) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name in COMMUNICATING:
            found.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def _group(op: ir.Operation, device: str, meshes: Meshes) -> set[str]:
    """The devices that run `op` together with `device`; none if it is alone."""
    if op.name not in SHARED:
        return set()
    mesh = ir.FlatSymbolRefAttr(op.attributes["mesh"]).value
    if mesh not in meshes or device not in meshes[mesh][1]:
        return set()
    sizes, devices = meshes[mesh]
    axes = strings(op, "axes")
    own = _fixed(devices.index(device), sizes, axes)
    return {d for i, d in enumerate(devices) if _fixed(i, sizes, axes) == own}


def _fixed(index: int, sizes: dict[str, int], axes: Sequence[str]) -> tuple[int, ...]:
    """A place's coordinates along all axes but `axes`; the last axis is fastest."""
    names = list(sizes)
    return tuple(
        index // prod(sizes[n] for n in names[i + 1 :]) % sizes[name]
        for i, name in enumerate(names)
        if name not in axes
    )


def _compare(
    function: str,
    devices: tuple[str, str],
    sequences: Sequence[list[ir.Operation]],
    fail: Fail,
) -> None:
    first, second = sequences
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if signature(a) != signature(b):
            fail(
                b,
                f"is number {i} that @{devices[1]} shares with @{devices[0]} in "
                f"@{function}, where @{devices[0]} has {signature(a)} and this is "
                f"{signature(b)}",
            )
    if len(first) != len(second):
        more, lack = devices if len(first) > len(second) else devices[::-1]
        extra = max(first, second, key=len)[min(len(first), len(second))]
        fail(extra, f"in @{function} waits for @{lack}: only @{more} has it")


def signature(op: ir.Operation) -> str:
    """What two members must agree on: op, group, reduction, and the whole's type."""
    words = [op.name.removeprefix("pcp."), *strings(op, "axes")]
    words += [text(op, name) for name in ("kind", "action") if name in op.attributes]
    words += [str(op.attributes["wire"])] if "wire" in op.attributes else []
    values = op.results if op.name == "pcp.all_gather" else op.operands
    if "sizes" in op.attributes:
        words += [str(integers(op, "sizes"))]
    return " ".join([*words, *(str(value.type) for value in values)])
