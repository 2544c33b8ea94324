"""Run a partitioned program on all its members at once, in one thread: the oracle.

Each member's function is cut at its collectives. The segments in between run in the
StableHLO reference interpreter, the exchange is numpy, and at each cut every member
of the group has to be at the same collective: a deadlock is an error that says who
waits for what. Control flow that holds collectives is interpreted here; all other
is left to the interpreter.

    outputs = lockstep.run(module, "main", inputs)     # inputs[member][argument]

The interpreter aborts the process on a few ops (cholesky, rng, custom_call, ...): run
programs that may hold them in a process of their own.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pcp.compiler.exchanges import (
    COLLECTIVES,
    PARITY,
    Array,
    Request,
    digest_words,
    spread,
)
from pcp.compiler.segments import Values, evaluate
from pcp.dialect.base import integer, strings, symbol, text
from pcp.dialect.bindings import ir
from pcp.dialect.bundles import CAST
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError
from pcp.mesh import Mesh
from pcp.passes.core.functions import symbol_name
from pcp.passes.core.rewriting import device_modules
from pcp.passes.core.walk import CONTROL_FLOW, block_of, returned
from pcp.passes.sharding.mesh import read_meshes

#: What a member asks for while it runs, and is given. Values are arrays, and futures.
Running = Generator[Request, list[Any] | None, list[Any]]


def run(
    module: ir.Module, entry: str, inputs: Sequence[Sequence[Array]]
) -> list[list[Array]]:
    """The results of `@entry` on every member, for each member's own inputs.

    Members are those of the module's mesh, in its order; `inputs` follows it. Raises
    `PassError` when members of a group meet different collectives, or wait in a ring.
    """
    meshes = read_meshes(module)
    homes = device_modules(module)
    (mesh,) = meshes.values() if len(meshes) == 1 else (_largest(meshes),)
    members = [
        _Member(homes[device], entry).run(list(given))
        for device, given in zip(mesh.devices, inputs, strict=True)
    ]
    return _Lockstep(meshes, mesh, members).run()


def _largest(meshes: dict[str, Mesh]) -> Mesh:
    return max(meshes.values(), key=lambda mesh: mesh.size)


# --- one member ---


class _Member:
    """Interprets one device's function; yields its collectives."""

    def __init__(self, home: ir.Operation, entry: str) -> None:
        for view in home.regions[0].blocks[0].operations:
            if symbol_name(view.operation) == entry:
                self.function = view.operation
                return
        raise PassError(f"module @{symbol_name(home)} has no function @{entry}")

    def run(self, arguments: list[Array]) -> Running:
        """The function's results, with a request for each collective on the way."""
        block = block_of(self.function, 0)
        values: Values = dict(zip(block.arguments, arguments, strict=True))
        return (yield from self._block(block, values))

    def _block(self, block: ir.Block, values: Values) -> Running:
        """Run a block; what its terminator hands on.

        What a `pcp.parity` repairs is so for what comes behind it in its block.
        """
        segment: list[ir.Operation] = []
        before: Values = {}
        end = returned(block)
        for view in block.operations:
            op = view.operation
            if op == end:
                break
            if not _stops(op):
                segment.append(op)
                continue
            evaluate(segment, values)
            segment = []
            results = yield from self._stop(op, values)
            if op.name == PARITY:
                before = _repair(op, results, values) | before
            else:
                values.update(zip(op.results, results, strict=True))
        evaluate(segment, values)
        handed_on = [values[v] for v in end.operands]
        values.update(before)
        return handed_on

    def _stop(self, op: ir.Operation, values: Values) -> Running:
        operands = [values[v] for v in op.operands]
        match op.name:
            case "stablehlo.while":
                return (yield from self._while(op, values, operands))
            case "stablehlo.case" | "stablehlo.if":
                chosen = _branch(op, operands[0])
                return (yield from self._block(block_of(op, chosen), values))
            case "pcp.start":
                block = block_of(op, 0)
                values.update(zip(block.arguments, operands, strict=True))
                return [_Future((yield from self._block(block, values)))]
            case "pcp.wait":
                return operands[0].take()
            case "pcp.digest":
                return [digest_words(spread(operands), text(op, "algo"))]
            case _ if op.name == CAST:
                many = len(op.results) != 1
                return list(operands[0]) if many else [tuple(operands)]
        answer = yield op, operands
        assert answer is not None, "a collective is resumed with its results"
        return answer

    def _while(self, op: ir.Operation, values: Values, carried: list[Array]) -> Running:
        condition, body = block_of(op, 0), block_of(op, 1)
        while True:
            values.update(zip(condition.arguments, carried, strict=True))
            (more,) = yield from self._block(condition, values)
            if not more:
                return carried
            values.update(zip(body.arguments, carried, strict=True))
            carried = yield from self._block(body, values)


class _Future:
    """What a started collective gave, until it is waited for."""

    def __init__(self, results: list[Array]) -> None:
        self.results: list[Array] | None = results

    def take(self) -> list[Array]:
        """The results, once."""
        if self.results is None:
            raise PassError("a future is waited for twice")
        results, self.results = self.results, None
        return results


def _repair(op: ir.Operation, repaired: list[Any], values: Values) -> Values:
    """Put what a parity gave in the place of its operands; what they were before.

    Tensors of several types come as one tuple, and what this was made of changes too.
    """
    changed = dict(zip(op.operands, repaired, strict=True))
    for given, new in list(changed.items()):
        if isinstance(new, tuple) and not isinstance(given.owner, ir.Block):
            changed |= zip(given.owner.operands, new, strict=True)
    before = {value: values[value] for value in changed}
    values.update(changed)
    return before


def _branch(op: ir.Operation, chosen: Array) -> int:
    """The region that runs: `if` counts true first, `case` clamps to the last."""
    last = len(op.regions) - 1
    if op.name == "stablehlo.if":
        return 0 if chosen else 1
    index = int(chosen)
    return index if 0 <= index <= last else last


def _stops(op: ir.Operation) -> bool:
    """Whether the op is a collective, or holds one, or a tuple of several tensors."""
    if op.name.startswith("pcp.") or op.name == CAST:
        return True
    if op.name not in CONTROL_FLOW:
        return False
    return any(
        _stops(inner.operation)
        for region in op.regions
        for inner in region.blocks[0].operations
    )


# --- all members ---


@dataclass
class _Lockstep:
    """Members in step: who waits at which collective."""

    meshes: dict[str, Mesh]
    mesh: Mesh
    members: list[Running]
    waiting: dict[int, Request] = field(default_factory=dict)
    done: dict[int, list[Array]] = field(default_factory=dict)
    mail: dict[tuple[int, int, int], list[Array]] = field(default_factory=dict)

    def run(self) -> list[list[Array]]:
        """Until all have returned."""
        for member in range(len(self.members)):
            self._resume(member, None)
        while self.waiting:
            if not self._round():
                raise PassError(self._stuck())
        return [self.done[i] for i in range(len(self.members))]

    def _resume(self, member: int, answer: list[Array] | None) -> None:
        self.waiting.pop(member, None)
        try:
            self.waiting[member] = self.members[member].send(answer)
        except StopIteration as end:
            self.done[member] = end.value

    def _round(self) -> bool:
        """Serve what can be served; whether anything was."""
        for member, (op, operands) in list(self.waiting.items()):
            if op.name == "pcp.send":
                self._post(member, op, operands[0])
                return True
            if op.name == "pcp.recv" and self._deliver(member, op):
                return True
            if op.name in COLLECTIVES and self._serve_group(member, op):
                return True
        return False

    def _serve_group(self, member: int, op: ir.Operation) -> bool:
        group = self._group(member, op)
        if any(m not in self.waiting for m in group):
            return False
        requests = [self.waiting[m] for m in group]
        self._same(group, [request[0] for request in requests])
        exchange = COLLECTIVES[op.name]
        for m, answer in zip(group, exchange(requests), strict=True):
            self._resume(m, answer)
        return True

    def _group(self, member: int, op: ir.Operation) -> list[int]:
        """The members of the op's group, the first axis it names varying slowest."""
        mesh = self.meshes[symbol(op, "mesh")]
        axes = strings(op, "axes")
        here = mesh.members[member]
        group = [
            i
            for i, place in enumerate(mesh.members)
            if all(place[a] == here[a] for a in mesh.axes if a not in axes)
        ]
        return sorted(group, key=lambda i: [mesh.members[i][a] for a in axes])

    def _same(self, group: Sequence[int], ops: Sequence[ir.Operation]) -> None:
        first = _facts(ops[0])
        for member, op in zip(group, ops, strict=True):
            if _facts(op) != first:
                raise PassError(
                    f"{location_string(op.location)}: member {member} is at {op.name} "
                    f"and member {group[0]} of its group at {ops[0].name} "
                    f"({location_string(ops[0].location)})"
                )

    def _post(self, member: int, op: ir.Operation, value: Array) -> None:
        target = self.mesh.devices.index(symbol(op, "to"))
        key = (member, target, integer(op, "channel"))
        self.mail.setdefault(key, []).append(value)
        self._resume(member, [])

    def _deliver(self, member: int, op: ir.Operation) -> bool:
        source = self.mesh.devices.index(symbol(op, "source"))
        waiting = self.mail.get((source, member, integer(op, "channel")))
        if not waiting:
            return False
        self._resume(member, [waiting.pop(0)])
        return True

    def _stuck(self) -> str:
        lines = [
            f"member {m} ({self.mesh.devices[m]}) waits at {op.name} "
            f"({location_string(op.location)})"
            for m, (op, _) in sorted(self.waiting.items())
        ]
        finished = ", ".join(map(str, sorted(self.done))) or "none"
        return f"members wait for each other; finished: {finished}; " + "; ".join(lines)


def _facts(op: ir.Operation) -> tuple:
    """What must be the same on all members."""
    own = {n: str(op.attributes[n]) for n in op.attributes if n != "channel"}
    return op.name, tuple(sorted(own.items()))
