"""Loops: `while` with a known number of iterations, backwards; any loop, forwards.

A loop becomes a loop that runs backwards; `residuals` says what it needs of the
forward one. Loops whose number of iterations is found by running them are in
`unknown_trips`.
"""

from pcp.autodiff.core.activity import Activity, propagate
from pcp.autodiff.core.forward import Tangents, push_forward, tangent_or_zeros
from pcp.autodiff.core.kinds import Site
from pcp.autodiff.core.rerun import erase_unused
from pcp.autodiff.loops import residuals
from pcp.autodiff.loops.active_loops import ActiveLoop
from pcp.autodiff.loops.cut_loops import RECOMPUTE
from pcp.autodiff.rules import unknown_trips
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis import loops
from pcp.passes.core.rewriting import captures
from pcp.passes.core.walk import block_of

Value = ir.Value


def while_(at: Site) -> list[Value | None]:
    """A loop from the last iteration to the first over cotangents of the carries.

    Captured values gather their cotangent in further carries.
    """
    counter = loops.counter(at.op)
    if counter is None:
        return unknown_trips.reverse(at)
    if counter.trips == 0:
        return [*at.cotangents, *[None] * (len(at.inputs) - len(at.cotangents))]
    loop = ActiveLoop(at)
    reverse = _reverse_loop(loop, counter, loop.starts())
    return loop.answers(list(reverse.results)[1:])


def _reverse_loop(
    loop: ActiveLoop, counter: loops.Counter, starts: list[Value]
) -> ir.Operation:
    """`for k = trips-1 ... 0`: one VJP of the body each."""
    i32 = hlo.tensor((), ir.IntegerType.get_signless(32))
    last = hlo.constant(counter.trips - 1, i32)
    operands = [last, *starts]
    types = [v.type for v in operands]
    reverse = hlo.op("while", operands, types, regions=2)
    hlo.body(reverse, types, lambda k, *_: hlo.compare("GE", k, hlo.zeros(i32)))
    location = reverse.location
    block = reverse.regions[1].blocks.append(*types, arg_locs=[location] * len(types))
    k, *carried = block.arguments
    again = RECOMPUTE in loop.at.op.attributes
    with ir.InsertionPoint(block):
        step = _counter_value(loop, counter, k)
        less = hlo.subtract(k, hlo.constant(1, i32))
        anchor, made = less.owner, len(list(block.operations))
        pull = loop.pull_back_again if again else loop.pull_back
        hlo.op("return", [less, *pull(carried)], [])
    if again:
        erase_unused(block, since=made)
    kept = residuals.Residuals(loop.at.op, counter, step, k)
    kept.resolve(reverse, anchor.operation)
    _attach_tapes(loop.at.op, counter, kept, reverse)
    return reverse


def _counter_value(loop: ActiveLoop, counter: loops.Counter, k: Value) -> Value:
    """start + k·step in the counter's own type."""
    element = hlo.element_type(loop.arguments[counter.index])
    value = hlo.convert(k, element)
    if counter.step != 1:
        value = hlo.multiply(value, hlo.constant(counter.step, value.type))
    if counter.start != 0:
        value = hlo.add(value, hlo.constant(counter.start, value.type))
    return value


def _attach_tapes(
    op: ir.Operation,
    counter: loops.Counter,
    kept: residuals.Residuals,
    reverse: ir.Operation,
) -> None:
    """Make the forward loop write what the placeholders stand for."""
    if not kept.taped:
        return
    k = reverse.regions[1].blocks[0].arguments[0]

    def count(body: ir.Block) -> Value:
        value = body.arguments[counter.index]
        if counter.start != 0:
            value = hlo.subtract(value, hlo.constant(counter.start, value.type))
        if counter.step != 1:
            value = hlo.divide(value, hlo.constant(counter.step, value.type))
        return hlo.convert(value, ir.IntegerType.get_signless(32))

    _, tapes = residuals.record(op, list(kept.taped), counter.trips, count)
    for placeholder, tape in zip(kept.taped.values(), tapes, strict=True):
        with ir.InsertionPoint(placeholder), placeholder.location:
            placeholder.results[0].replace_all_uses_with(residuals.read(tape, k))
        placeholder.erase()


# --- forward mode ---


def while_forward(op: ir.Operation, tangents: Tangents) -> None:
    """The loop carries the tangents of its active carries along."""
    captured = {v: "" for v in captures(op) if v in tangents}
    start = {j for j, v in enumerate(op.operands) if v in tangents}
    moving = sorted(_active_carries(op, start, captured))
    with ir.InsertionPoint(op):
        starts = [tangent_or_zeros(op.operands[j], tangents) for j in moving]
    ops = [inner.operation for inner in block_of(op, 1).operations][:-1]

    def update(body: ir.Block, carried: list[Value]) -> list[Value]:
        inner: Tangents = {v: tangents[v] for v in captured}
        inner.update(zip((body.arguments[j] for j in moving), carried, strict=True))
        push_forward(ops, inner)
        after = loops.returned(body)
        return [tangent_or_zeros(after[j], inner) for j in moving]

    wider = residuals.widened(op, starts, update)
    for j, tangent in zip(moving, list(wider.results)[len(op.results) :], strict=True):
        tangents[wider.results[j]] = tangent


def _active_carries(op: ir.Operation, active: set[int], captured: Activity) -> set[int]:
    """The least set of carries, from `active`, that the body maps into itself."""
    body = block_of(op, 1)
    ops = [inner.operation for inner in body.operations][:-1]
    while True:
        inner = {**captured, **{body.arguments[j]: "" for j in active}}
        propagate(ops, inner)
        more = {j for j, r in enumerate(loops.returned(body)) if r in inner}
        if more <= active:
            return active
        active = active | more
