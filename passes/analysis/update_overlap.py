"""Whether an update is made of other places of the tensor that it is written into.

IREE makes an update where it is written, in one dispatch with what is done to each of
its elements, and reads what it is made of meanwhile. That is right where each element
is made of the one that it replaces, and of other tensors. Where it is made of others,
some of those are written over before they are read. What stands behind an
`optimization_barrier` has a buffer of its own.
"""

from pcp.dialect.bindings import ir
from pcp.passes.core.constants import splat
from pcp.passes.core.elementwise import ELEMENTWISE
from pcp.passes.core.rewriting import defining, ints
from pcp.passes.core.walk import used

Value = ir.Value

MOST = 20_000
"""Values that are looked at: an update that is made of more may be of anything."""

_VIEWS = frozenset(
    f"stablehlo.{name}"
    for name in (
        "bitcast_convert broadcast_in_dim dynamic_slice reshape reverse slice transpose"
    ).split()
)
_IN_PLACE = ELEMENTWISE | {"stablehlo.reshape"}


def origin(value: Value) -> Value:
    """What a slice, or a slice of a slice, is a part of."""
    while (op := defining(value)) is not None and op.name in _VIEWS:
        value = op.operands[0]
    return value


def reads_elsewhere(op: ir.Operation, made: Value) -> bool:
    """Whether `made`, which `op` writes into its first operand, reads that elsewhere.

    Where `op` is no dynamic_update_slice, any place is another one.
    """
    whole, todo, apart = origin(op.operands[0]), [made], set[Value]()
    seen = set[Value]()
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        if value == whole:
            return True
        source = _fused(value)
        if source is None or reads_the_same(op, source):
            continue
        if source.name in _IN_PLACE:
            todo += source.operands
        elif _is_made_of(source, whole, apart):
            return True
    return False


def _fused(value: Value) -> ir.Operation | None:
    """The op that makes it, maybe together with what reads it."""
    op = defining(value)
    apart = op is None or op.name == "stablehlo.optimization_barrier"
    return None if apart else op


def reads_the_same(write: ir.Operation, read: ir.Operation) -> bool:
    """Whether it reads what the update writes over, each element in its place."""
    if write.name != "stablehlo.dynamic_update_slice":
        return False
    whole, update, *starts = write.operands
    if not read.operands or read.operands[0] != whole:
        return False
    if read.results[0].type != update.type:
        return False
    if read.name == "stablehlo.dynamic_slice":
        return list(read.operands)[1:] == starts
    if read.name != "stablehlo.slice" or set(ints(read, "strides")) - {1}:
        return False
    return [splat(start) for start in starts] == list(ints(read, "start_indices"))


def _is_made_of(op: ir.Operation, whole: Value, apart: set[Value]) -> bool:
    """Whether the op needs the tensor at all; `apart` are those that do not."""
    todo = list(used(op))
    while todo:
        value = todo.pop()
        if value == whole:
            return True
        if value in apart:
            continue
        if len(apart) >= MOST:
            return True
        apart.add(value)
        if (source := _fused(value)) is not None:
            todo += used(source)
    return False
