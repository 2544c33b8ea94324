"""The reverse of a loop whose number of iterations is found by running it.

The forward loop counts its iterations, n, and keeps nothing. The reverse loop runs
from n-1 to 0; before each VJP of the body it gets the state back by running the
body again from a kept one (`slots`), so memory does not depend on n:

    attribute of the `while`   slots                  body runs, per iteration
    none                       3 levels of 16, 49     1 (forward) + 1 to 3 + VJP
    pcp.checkpoint = c         3 levels of c, 3c + 1  the same up to c³ iterations
    pcp.max_trip_count = M     1 level of M, M + 1    1 + 1 + VJP: a tape

Longer loops than c³ or M are right all the same and take more time: each iteration
(P - 1)/2 more body runs, P being ⌈n/c³⌉ or ⌈n/M⌉. One more run than the VJP needs
is the price of static shapes: the period depends on n.

Second derivatives by reverse over reverse keep states that hold the slots of the
first, so memory grows with their square; forward over reverse only doubles it.
"""

from collections.abc import Sequence
from dataclasses import replace

from pcp.autodiff.core.kinds import Site
from pcp.autodiff.core.rerun import erase_unused, run_again
from pcp.autodiff.loops import residuals
from pcp.autodiff.loops.active_loops import ActiveLoop
from pcp.autodiff.loops.cut_loops import CHECKPOINT, positive
from pcp.autodiff.loops.slots import Slots
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis import loops
from pcp.passes.core.rewriting import captures, operations
from pcp.passes.core.walk import block_of

Value = ir.Value

#: On a loop: it runs at most so often, and there is memory for a state of each.
MAX_TRIP_COUNT = "pcp.max_trip_count"

PER_LEVEL, LEVELS = 16, 3


def reverse(at: Site) -> list[Value | None]:
    """The rule of a `while` whose counter is not static."""
    per_level, levels = _layout(at.op)
    count = len(at.op.operands)
    counted = _counted(at)
    loop = ActiveLoop(counted)
    slots = Slots(counted.op.results[count], per_level, levels)
    answers = loop.answers(_Reverse(loop, slots).emit(loop.starts()))
    return [*answers[:count], *answers[count + 1 :]]


def _layout(op: ir.Operation) -> tuple[int, int]:
    """(slots per level, levels) as the op's attributes ask."""
    if (bound := positive(op, MAX_TRIP_COUNT)) is not None:
        return bound, 1
    return max(2, positive(op, CHECKPOINT) or PER_LEVEL), LEVELS


def _counted(at: Site) -> Site:
    """Make the loop count its iterations, in an i32 behind its other carries."""
    count = len(at.op.operands)
    with ir.InsertionPoint(at.op), at.op.location:
        start = _int(0)
    wider = residuals.widened(at.op, [start], lambda _, c: [hlo.add(c[0], _int(1))])
    return replace(
        at,
        op=wider,
        inputs=(*at.inputs[:count], start, *at.inputs[count:]),
        cotangents=(*at.cotangents, None),
        wanted=(*at.wanted[:count], False, *at.wanted[count:]),
    )


class _Reverse:
    """Emits the reverse loop.

    The VJP is emitted first, on the values of the forward body's arguments: which
    of them it uses decides which carries the states consist of.
    """

    def __init__(self, loop: ActiveLoop, slots: Slots) -> None:
        self.loop = loop
        self.slots = slots
        self.invariant = loops.invariant(loop.at.op)

    def emit(self, starts: Sequence[Value]) -> list[Value]:
        """The last cotangents of the loop's targets."""
        husk, block = self._vjp(starts)
        state = self._state(block)
        last = hlo.subtract(self.slots.trips, _int(1))
        kept = [self._kept_at_first(j) for j in state]
        operands = [last, *starts, *kept]
        types = [v.type for v in operands]
        reverse = hlo.op("while", operands, types, regions=2)
        hlo.body(reverse, types, lambda t, *_: hlo.compare("GE", t, _int(0)))
        block.append_to(reverse.regions[1])
        block = block_of(reverse, 1)
        husk.erase()
        for value in kept:
            block.add_argument(value.type, reverse.location)
        self._get_state(block, state, list(block.arguments)[1 + len(starts) :])
        return list(reverse.results)[1 : 1 + len(starts)]

    def _vjp(self, starts: Sequence[Value]) -> tuple[ir.Operation, ir.Block]:
        """The reverse body so far: (t, cotangents) to (t - 1, cotangents)."""
        husk = hlo.op("case", [_int(0)], [], regions=1)
        types = [_int_type(), *(v.type for v in starts)]
        block = husk.regions[0].blocks.append(
            *types, arg_locs=[husk.location] * len(types)
        )
        t, *carried = block.arguments
        with ir.InsertionPoint(block):
            less = hlo.subtract(t, _int(1))
            made = len(list(block.operations))
            hlo.op("return", [less, *self.loop.pull_back_again(carried)], [])
        erase_unused(block, since=made)
        return husk, block

    def _state(self, block: ir.Block) -> list[int]:
        """The carries that the VJP needs, and those that the body makes them from."""
        place = {v: j for j, v in enumerate(self.loop.arguments)}
        ops = [op for o in block.operations for op in (o.operation, *operations(o))]
        need = {place[v] for op in ops for v in op.operands if v in place}
        while True:
            values = {self.loop.returned[j] for j in need}
            for op in reversed(self.loop.ops):
                if any(r in values for r in op.results):
                    values.update(op.operands)
                    values.update(captures(op) if len(op.regions) else ())
            more = need | {place[v] for v in values if v in place}
            if more == need:
                return sorted(j for j in need if not self.invariant[j])
            need = more

    def _kept_at_first(self, j: int) -> Value:
        """Slots that all hold the state before the first iteration."""
        value = self.loop.at.op.operands[j]
        shape = hlo.shape_of(value)
        dimensions = range(1, len(shape) + 1)
        return hlo.broadcast_in_dim(value, [self.slots.count, *shape], [*dimensions])

    def _get_state(self, block: ir.Block, state: list[int], kept: list[Value]) -> None:
        """In front of the VJP: run again from the nearest kept state up to t."""
        t = block.arguments[0]
        with ir.InsertionPoint.at_block_begin(block):
            start = self.slots.start(t)
            slot = self.slots.slot(start)
            values = [residuals.read(tape, slot) for tape in kept]
            values, kept = self._run(start, t, state, values, kept)
        arguments = dict(zip(state, values, strict=True))
        for j, argument in enumerate(self.loop.arguments):
            value = self.loop.at.op.operands[j] if self.invariant[j] else None
            value = arguments.get(j, value)
            if value is not None:
                for user in operations(block.owner):
                    user.replace_uses_of_with(argument, value)
        *_, end = block.operations
        with ir.InsertionPoint(end):
            hlo.op("return", [*end.operands, *kept], [])
        end.operation.erase()

    def _run(
        self,
        start: Value,
        stop: Value,
        state: list[int],
        values: list[Value],
        kept: list[Value],
    ) -> tuple[list[Value], list[Value]]:
        """Iterations start to stop - 1, each keeping the state that it begins with."""
        operands = [start, *values, *kept]
        types = [v.type for v in operands]
        run = hlo.op("while", operands, types, regions=2)
        hlo.body(run, types, lambda i, *_: hlo.compare("LT", i, stop))
        count = len(state)

        def iteration(i: Value, *carried: Value) -> list[Value]:
            now, tapes = carried[:count], carried[count:]
            slot = self.slots.slot(i)
            written = [
                residuals.write_slot(tape, value, slot)
                for tape, value in zip(tapes, now, strict=True)
            ]
            after = self._iterate(dict(zip(state, now, strict=True)))
            return [hlo.add(i, _int(1)), *(after[j] for j in state), *written]

        hlo.body(run, types, iteration, region=1)
        erase_unused(block_of(run, 1))
        results = list(run.results)[1:]
        return results[:count], results[count:]

    def _iterate(self, now: dict[int, Value]) -> list[Value]:
        """The body on a state; a carry that is no part of it is not used."""
        op = self.loop.at.op
        return run_again(op, 1, self._carries(now))[0]

    def _carries(self, now: dict[int, Value]) -> list[Value]:
        """All carries: of the state, invariant, or whatever (dead) for the others."""
        operands = self.loop.at.op.operands
        return [now.get(j, operands[j]) for j in range(self.loop.count)]


def _int_type() -> ir.Type:
    return hlo.tensor((), ir.IntegerType.get_signless(32))


def _int(value: int) -> Value:
    return hlo.constant(value, _int_type())
