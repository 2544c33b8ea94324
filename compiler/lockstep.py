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

import numpy as np

from pcp.compiler.exchanges import COLLECTIVES, Array, Request
from pcp.dialect.base import integer, strings, symbol
from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.context import location_string
from pcp.errors import PassError
from pcp.mesh import Mesh
from pcp.passes.base import CppPasses
from pcp.passes.functions import symbol_name
from pcp.passes.sharding.flow import CONTROL_FLOW, block_of, returned
from pcp.passes.sharding.mesh import read_meshes

Values = dict[ir.Value, Any]

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
    homes = _homes(module)
    (mesh,) = meshes.values() if len(meshes) == 1 else (_largest(meshes),)
    members = [
        _Member(homes[device], entry).run(list(given))
        for device, given in zip(mesh.devices, inputs, strict=True)
    ]
    return _Lockstep(meshes, mesh, members).run()


def _largest(meshes: dict[str, Mesh]) -> Mesh:
    return max(meshes.values(), key=lambda mesh: mesh.size)


def _homes(module: ir.Module) -> dict[str, ir.Operation]:
    """Each device's module."""
    return {
        symbol_name(op): op.operation
        for op in module.body.operations
        if op.operation.name == "builtin.module"
    }


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
        """Run a block; what its terminator hands on."""
        segment: list[ir.Operation] = []
        end = returned(block)
        for view in block.operations:
            op = view.operation
            if op == end:
                break
            if not _stops(op):
                segment.append(op)
                continue
            _evaluate(segment, values)
            segment = []
            results = yield from self._stop(op, values)
            values.update(zip(op.results, results, strict=True))
        _evaluate(segment, values)
        return [values[v] for v in end.operands]

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


def _branch(op: ir.Operation, chosen: Array) -> int:
    """The region that runs: `if` counts true first, `case` clamps to the last."""
    last = len(op.regions) - 1
    if op.name == "stablehlo.if":
        return 0 if chosen else 1
    index = int(chosen)
    return index if 0 <= index <= last else last


def _stops(op: ir.Operation) -> bool:
    """Whether the op is a collective, or holds one."""
    if op.name.startswith("pcp."):
        return True
    if op.name not in CONTROL_FLOW:
        return False
    return any(
        _stops(inner.operation)
        for region in op.regions
        for inner in region.blocks[0].operations
    )


# --- segments ---


def _evaluate(segment: Sequence[ir.Operation], values: Values) -> None:
    """Run ops in the interpreter; adds what later ops may use to `values`."""
    if not segment:
        return
    inside = {result for op in segment for result in op.results}
    given = list(dict.fromkeys(_free(segment, inside)))
    wanted = [r for r in inside if _used_outside(r, segment)]
    if not wanted:
        return
    module = _segment_module(segment, given, wanted)
    with module.context:
        inputs = [dense(values[v], v.type) for v in given]
        results = stablehlo.eval_module(module, inputs)
    for value, result in zip(wanted, results, strict=True):
        shape = tuple(ir.RankedTensorType(value.type).shape)
        values[value] = np.array(result).reshape(shape)


def dense(array: Array, type_: ir.Type) -> ir.Attribute:
    """An array as the interpreter takes it; rank 0 stays rank 0."""
    element = ir.RankedTensorType(type_).element_type
    return ir.DenseElementsAttr.get(
        np.ascontiguousarray(array).reshape(array.shape),
        type=element,
        shape=list(array.shape),
    )


def _free(segment: Sequence[ir.Operation], inside: set[ir.Value]):
    """Values from before that the segment uses, in its regions too."""
    for op in segment:
        yield from _free_in(op, set(inside))


def _free_in(op: ir.Operation, known: set[ir.Value]):
    yield from (v for v in op.operands if v not in known)
    for region in op.regions:
        for block in region.blocks:
            local = known | set(block.arguments)
            for inner in block.operations:
                yield from _free_in(inner.operation, local)
                local.update(inner.operation.results)


def _used_outside(value: ir.Value, segment: Sequence[ir.Operation]) -> bool:
    home = segment[0].block
    ops = set(segment)
    for use in value.uses:
        user = use.owner.operation
        while user.block != home:
            user = user.parent.operation
        if user not in ops:
            return True
    return False


def _segment_module(
    segment: Sequence[ir.Operation],
    given: Sequence[ir.Value],
    wanted: Sequence[ir.Value],
) -> ir.Module:
    """`@main(given) -> wanted`."""
    with segment[0].location:
        module = ir.Module.create()
        types = [v.type for v in given]
        function = ir.FunctionType.get(types, [v.type for v in wanted])
        with ir.InsertionPoint(module.body):
            main = ir.Operation.create(
                "func.func",
                regions=1,
                attributes={
                    "sym_name": ir.StringAttr.get("main"),
                    "function_type": ir.TypeAttr.get(function),
                },
            )
        block = main.regions[0].blocks.append(
            *types, arg_locs=[ir.Location.current] * len(types)
        )
        moved = dict(zip(given, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for op in segment:
                copy = op.clone()
                copy.walk(lambda inner: _remap(inner, moved))
                moved.update(zip(op.results, copy.results, strict=True))
            ir.Operation.create("func.return", operands=[moved[v] for v in wanted])
    if any(op.name.startswith("chlo.") for op in segment):
        CppPasses("func.func(chlo-legalize-to-stablehlo)").run(module)
    return module


def _remap(op: ir.Operation, moved: dict[ir.Value, ir.Value]) -> ir.WalkResult:
    for i, operand in enumerate(op.operands):
        if operand in moved:
            op.operation.operands[i] = moved[operand]
    return ir.WalkResult.ADVANCE


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
