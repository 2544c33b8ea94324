"""A loop cut into segments, so that its reverse keeps fewer states at a time.

`pcp.checkpoint = k` on a `while` of N known iterations makes of it, before it is
differentiated, a loop over N div k segments of k iterations each and one over the
N mod k that remain:

    for j < N div k: for i < k: body(start + step·(j·k + i))
    for i < N mod k: body(...)

The reverse of the outer loop keeps only the carries at the begin of each segment
(`pcp.recompute`) and runs a segment again before it walks it back: memory of
N/k + k states in place of N, least at k = √N, for one more forward run.
"""

from collections.abc import Callable

from pcp.autodiff.core.rerun import run_again
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError
from pcp.passes.analysis import loops

Value = ir.Value

#: On a loop: keep a state every so many iterations.
CHECKPOINT = "pcp.checkpoint"
#: On a loop: its reverse keeps the carries alone and runs the body again.
RECOMPUTE = "pcp.recompute"


def positive(op: ir.Operation, name: str) -> int | None:
    """An integer attribute that must be positive; None if the op has none."""
    given = hlo.attribute(op, name)
    if given is None:
        return None
    if not isinstance(given, ir.IntegerAttr) or ir.IntegerAttr(given).value < 1:
        where = location_string(op.location)
        raise PassError(
            f"{where}: {op.name}: {name} is {given}; it is a positive integer"
        )
    return ir.IntegerAttr(given).value


def segmented(op: ir.Operation) -> list[Value] | None:
    """The two nested loops and the remaining one, if the op asks for them."""
    every = positive(op, CHECKPOINT)
    counter = loops.counter(op)
    if every is None or counter is None or every >= counter.trips:
        return None
    whole, rest = divmod(counter.trips, every)
    values = [v for i, v in enumerate(op.operands) if i != counter.index]

    def segment(j: Value, carries: list[Value]) -> list[Value]:
        first = hlo.multiply(j, _int(every))
        return _counted(every, carries, lambda i, c: step(hlo.add(first, i), c))

    def step(number: Value, carries: list[Value]) -> list[Value]:
        return _body(op, counter, number, carries)

    values = _counted(whole, values, segment)
    values[0].owner.attributes[RECOMPUTE] = ir.UnitAttr.get()
    if rest:
        done = _int(whole * every)
        values = _counted(rest, values, lambda i, c: step(hlo.add(done, i), c))
    last = counter.start + counter.step * counter.trips
    end = hlo.constant(last, op.results[counter.index].type)
    return [*values[: counter.index], end, *values[counter.index :]]


def _counted(
    trips: int,
    carries: list[Value],
    body: Callable[[Value, list[Value]], list[Value]],
) -> list[Value]:
    """`for i in range(trips): carries = body(i, carries)`; the carries at the end."""
    operands = [_int(0), *carries]
    types = [v.type for v in operands]
    loop = hlo.op("while", operands, types, regions=2)
    hlo.body(loop, types, lambda i, *_: hlo.compare("LT", i, _int(trips)))

    def next_(i: Value, *values: Value) -> list[Value]:
        after = body(i, list(values))
        return [hlo.add(i, _int(1)), *after]

    hlo.body(loop, types, next_, region=1)
    return list(loop.results)[1:]


def _body(
    op: ir.Operation, counter: loops.Counter, number: Value, carries: list[Value]
) -> list[Value]:
    """Iteration `number` of the loop; `carries` and result leave the counter out."""
    at = counter.index
    type_ = op.operands[at].type
    value = hlo.convert(number, hlo.element_type(type_))
    value = hlo.multiply(value, hlo.constant(counter.step, type_))
    value = hlo.add(value, hlo.constant(counter.start, type_))
    returned, _ = run_again(op, 1, [*carries[:at], value, *carries[at:]])
    return [v for i, v in enumerate(returned) if i != at]


def _int(value: int) -> Value:
    return hlo.constant(value, hlo.tensor((), ir.IntegerType.get_signless(32)))
