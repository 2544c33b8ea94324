"""What a reverse loop needs of the forward iterations, kept or made again.

The reverse body is first written as if it could use the values of the forward
body. Each such value is then, in this order of preference,

* the loop counter, computed from the reverse counter;
* an invariant carry: the same in every iteration, read from outside;
* made again, if it costs nothing to keep it out of memory: a constant, an index
  computation, a slice of something invariant, a broadcast of something small;
* made again, where it is the exponentials of attention (`weights`);
* kept: the forward loop writes it to a tape of one slot an iteration.
"""

from collections.abc import Callable

from pcp.autodiff.loops.weights import made_again
from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.analysis.loops import Counter, invariant, returned
from pcp.passes.core.rewriting import operations
from pcp.passes.core.walk import block_of

Value = ir.Value

#: Made again whenever all their operands are available without a tape.
CHEAP = frozenset(
    f"stablehlo.{name}"
    for name in (
        "abs add and broadcast_in_dim clamp compare complex concatenate constant "
        "convert divide dynamic_slice dynamic_update_slice iota maximum minimum "
        "multiply negate not or pad real imag remainder reshape reverse select sign "
        "slice subtract transpose xor floor ceil"
    ).split()
)
#: Made again from a taped operand that is smaller than the result.
GROWING = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.pad"})
#: Made again from a taped operand of the same size: only its shape differs.
RESHAPING = frozenset({"stablehlo.reshape"})


class Residuals:
    """Resolves forward values inside the body of a reverse loop."""

    def __init__(
        self, loop: ir.Operation, counter: Counter, step: Value, count: Value
    ) -> None:
        """`step`: the forward counter's value; `count`: the iteration, an i32."""
        self._body = block_of(loop, 1)
        self._invariant = invariant(loop)
        self._operands = list(loop.operands)
        self._counter = counter
        self._free: dict[Value, bool] = {}
        self._known: dict[Value, Value] = {self._body.arguments[counter.index]: step}
        self._count = count
        self._again = made_again(self._body)
        self._inside = set(self._body.arguments)
        for op in self._body.operations:
            self._inside.update(op.results)
        self.taped: dict[Value, ir.Operation] = {}

    def resolve(self, reverse: ir.Operation, before: ir.Operation) -> None:
        """Replace every use of a forward value in `reverse`; emits at `before`.

        Values that must be kept become placeholders, listed in `taped`.
        """
        for op in operations(reverse):
            for value in {v for v in op.operands if v in self._inside}:
                with ir.InsertionPoint(before):
                    op.replace_uses_of_with(value, self._available(value))

    def _is_free(self, value: Value) -> bool:
        if value not in self._inside or value in self._known:
            return True
        if value not in self._free:
            self._free[value] = self._compute_free(value)
        return self._free[value]

    def _compute_free(self, value: Value) -> bool:
        owner = value.owner
        if isinstance(owner, ir.Block):
            return self._invariant[ir.BlockArgument(value).arg_number]
        return owner.name in CHEAP and all(map(self._is_free, owner.operands))

    def _available(self, value: Value) -> Value:
        if value not in self._inside:
            return value
        if value not in self._known:
            self._known[value] = self._make(value)
        return self._known[value]

    def _make(self, value: Value) -> Value:
        owner = value.owner
        if isinstance(owner, ir.Block):
            index = ir.BlockArgument(value).arg_number
            return (
                self._operands[index] if self._invariant[index] else self._tape(value)
            )
        again = value in self._again or self._is_worth_remaking(owner)
        if again or self._is_free(value):
            copy = owner.operation.clone().operation
            for operand in set(owner.operands):
                # The clone was inserted first: bring what it needs in front of it.
                with ir.InsertionPoint(copy):
                    copy.replace_uses_of_with(operand, self._available(operand))
            return copy.results[0]
        return self._tape(value)

    def _is_worth_remaking(self, owner: ir.Operation) -> bool:
        if owner.name in RESHAPING:
            return True
        if owner.name not in GROWING:
            return False
        sizes = sum(hlo.size(x) for x in owner.operands)
        return sizes < hlo.size(owner.results[0])

    def _tape(self, value: Value) -> Value:
        """A placeholder for the slot of this iteration."""
        self.taped[value] = ir.Operation.create(
            "builtin.unrealized_conversion_cast",
            operands=[self._count],
            results=[value.type],
        )
        return self.taped[value].results[0]


def record(
    loop: ir.Operation,
    values: list[Value],
    trips: int,
    count: Callable[[ir.Block], Value],
) -> tuple[ir.Operation, list[Value]]:
    """Rebuild `loop` so that it also writes `values` of its body to tapes.

    Each tape has a leading dimension of `trips`. `count(body)` emits the number
    of the iteration. Returns the new loop and the tapes.
    """
    types = [hlo.tensor((trips, *hlo.shape_of(v)), hlo.element_type(v)) for v in values]
    with ir.InsertionPoint(loop), loop.location:
        starts = [hlo.zeros(t) for t in types]

    def write(body: ir.Block, tapes: list[Value]) -> list[Value]:
        at = count(body)
        return [write_slot(t, v, at) for t, v in zip(tapes, values, strict=True)]

    wider = widened(loop, starts, write)
    return wider, list(wider.results)[len(loop.results) :]


def widened(
    loop: ir.Operation,
    starts: list[Value],
    update: Callable[[ir.Block, list[Value]], list[Value]],
) -> ir.Operation:
    """Replace `loop` by one with more carries, which begin as `starts`.

    `update(body, carries)` emits their next values at the end of the body. The old
    loop is left without regions and without users.
    """
    types = [v.type for v in starts]
    with ir.InsertionPoint(loop), loop.location:
        wider = ir.Operation.create(
            "stablehlo.while",
            operands=[*loop.operands, *starts],
            results=[*(r.type for r in loop.results), *types],
            regions=2,
            attributes={name: loop.attributes[name] for name in loop.attributes},
        )
    for region in (0, 1):
        block_of(loop, region).append_to(wider.regions[region])
        for type_ in types:
            block_of(wider, region).add_argument(type_, loop.location)
    body = block_of(wider, 1)
    *_, end = body.operations
    with ir.InsertionPoint(end), loop.location:
        more = update(body, list(body.arguments)[len(loop.operands) :])
        hlo.op("return", [*returned(body), *more], [])
    end.operation.erase()
    for old, new in zip(loop.results, wider.results, strict=False):
        old.replace_all_uses_with(new)
    return wider


def starts_at(tape: Value, at: Value) -> list[Value]:
    zero = hlo.zeros(at.type)
    return [at, *[zero] * (len(hlo.shape_of(tape)) - 1)]


def write_slot(tape: Value, value: Value, at: Value) -> Value:
    """The tape with `value` in slot `at`."""
    slot = hlo.reshape(value, [1, *hlo.shape_of(value)])
    return hlo.dynamic_update_slice(tape, slot, starts_at(tape, at))


def read(tape: Value, at: Value) -> Value:
    """The slot of iteration `at`."""
    shape = hlo.shape_of(tape)[1:]
    return hlo.reshape(
        hlo.dynamic_slice(tape, starts_at(tape, at), [1, *shape]), list(shape)
    )
