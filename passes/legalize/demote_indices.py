"""`pcp-demote-indices`: 64-bit integers inside a program become 32-bit ones.

Vulkan's baseline has no 64-bit integers, while token ids and indices usually come
as `i64`. The functions keep their types: at the border each `i64` is taken apart
into two words without arithmetic (a view of the same bytes), and put together
again where a result or a call needs it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.base import Pass
from pcp.passes.core.rewriting import before, defining, functions, refuse

INT32 = np.iinfo(np.int32)
INT64 = np.iinfo(np.int64)
WORD = 32  # bits

# The high word, or the pattern of all 64 bits, is what these are about.
_REFUSED = frozenset(
    f"stablehlo.{name}"
    for name in (
        "bitcast_convert",
        "count_leading_zeros",
        "popcnt",
        "rng",
        "rng_bit_generator",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
    )
)


@dataclass(frozen=True)
class DemoteIndices(Pass):
    """Compute with `i32` where the program says `i64`; signatures stay.

    Assumes that the program's `i64` values fit into 32 bits, as indices of any
    tensor that fits into memory do. Leaves no op with an `i64` operand or result
    but calls, returns and the views at the border. A constant beyond 32 bits, or
    an op about the other bits, is an error at its location; the high word of an
    argument (`shift_right_logical` by 32) is kept exactly.

        func.func @main(%i: tensor<4xi64>) -> tensor<4xi64> {
          %0 = stablehlo.add %i, %i : tensor<4xi64>
          return %0 : tensor<4xi64>
        }

    becomes, in short,

        func.func @main(%i: tensor<4xi64>) -> tensor<4xi64> {
          %words = "flow.tensor.bitcast"(%i) : (tensor<4xi64>) -> tensor<4x2xi32>
          %low = ... first word of each pair ... : tensor<4xi32>
          %0 = stablehlo.add %low, %low : tensor<4xi32>
          ... both words of %0 side by side, back to tensor<4xi64> ...
    """

    name = "pcp-demote-indices"

    def run(self, module: ir.Module) -> None:
        """Rewrite in place, or raise `PassError` at what needs 64 bits."""
        demote_indices(module)


def demote_indices(module: ir.Module) -> None:
    """Rewrite every function with a body; see `DemoteIndices`."""
    context = module.context
    unregistered = context.allow_unregistered_dialects
    context.allow_unregistered_dialects = True  # `flow` is IREE's own
    try:
        with context:
            for function in list(functions(module)):
                _demote(module, function)
    finally:
        context.allow_unregistered_dialects = unregistered


def _demote(module: ir.Module, function: ir.Operation) -> None:
    block = function.regions[0].blocks[0]
    _use_high_words(function, block)
    ops = list(_walk(function))
    inner = [op for op in ops if _is_computed(op)]
    borders = [op for op in ops if not _is_computed(op)]
    wanted = [(op, i) for op in borders for i in _wide(op.operands)]
    sources = [(block.arguments[i], None) for i in _wide(block.arguments)]
    sources += [(op.results[i], op) for op in borders for i in _wide(op.results)]
    for op in inner:
        with before(op):
            _narrow(op)
    for value, maker in sources:
        _read_low_word(value, maker, block)
    for op, i in wanted:
        if not _is_wide(op.operands[i].type):
            with before(op):
                op.operands[i] = _widen(op.operands[i])


def _walk(op: ir.Operation) -> Iterator[ir.Operation]:
    for region in op.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                yield inner.operation
                yield from _walk(inner.operation)


def _is_computed(op: ir.Operation) -> bool:
    """Not a call, a return of the function, or another op with a fixed type."""
    return op.name.startswith("stablehlo.")


def _is_wide(type_: ir.Type) -> bool:
    if not isinstance(type_, ir.RankedTensorType):
        return False
    element = type_.element_type
    return isinstance(element, ir.IntegerType) and str(element) == "i64"


def _wide(values: Iterable[ir.Value]) -> list[int]:
    """Positions of the `i64` tensors among operands, results or arguments."""
    return [i for i, value in enumerate(values) if _is_wide(value.type)]


def _i32() -> ir.Type:
    return ir.IntegerType.get_signless(WORD)


# --- inside ------------------------------------------------------------------


def _narrow(op: ir.Operation) -> None:
    """Retype an op's results and its regions' arguments; refuse what cannot be."""
    wide = _wide(op.operands) or _wide(op.results)
    if wide and op.name in _REFUSED:
        refuse(op, "needs all 64 bits of an integer, and this target has 32")
    if op.name == "stablehlo.constant" and _wide(op.results):
        op.attributes["value"] = _narrow_constant(op)
    inner = [a for r in op.regions for b in r.blocks for a in b.arguments]
    for value in [*op.results, *inner]:
        if _is_wide(value.type):
            value.set_type(hlo.like(value, element=_i32()))


def _narrow_constant(op: ir.Operation) -> ir.Attribute:
    """The same numbers; the ends of the 64-bit range become the 32-bit ones."""
    dense = ir.DenseIntElementsAttr(op.attributes["value"])
    values = np.array(dense)
    ends = {INT64.min: INT32.min, INT64.max: INT32.max}
    for end, narrow in ends.items():
        values = np.where(values == end, narrow, values)
    if values.size and (values.min() < INT32.min or values.max() > INT32.max):
        refuse(op, "holds an integer beyond 32 bits, and this target has no more")
    shape = list(hlo.shape_of(op.results[0]))
    narrowed = np.ascontiguousarray(values.astype(np.int32).reshape(shape))
    type_ = hlo.tensor(shape, _i32())
    if dense.is_splat:
        element = ir.IntegerAttr.get(_i32(), int(narrowed.flat[0]))
        return ir.DenseElementsAttr.get_splat(type_, element)
    return ir.DenseElementsAttr.get(narrowed, type=type_)


# --- the border --------------------------------------------------------------


def _bitcast(value: ir.Value, type_: ir.Type) -> ir.Value:
    """The same bytes as another type: no kernel runs for it."""
    sizes = ir.DenseI32ArrayAttr.get([1, 0, 0])  # no dynamic dimensions
    return ir.Operation.create(
        "flow.tensor.bitcast",
        operands=[value],
        results=[type_],
        attributes={"operandSegmentSizes": sizes},
    ).result


def _word(value: ir.Value, which: int) -> ir.Value:
    """The low (0) or high (1) words of an `i64` tensor; memory is little-endian."""
    shape = list(hlo.shape_of(value))
    words = _bitcast(value, hlo.tensor([*shape, 2], _i32()))
    starts = [0] * len(shape) + [which]
    one = hlo.slice_(words, starts, [*shape, which + 1])
    return hlo.reshape(one, shape)


def _widen(value: ir.Value) -> ir.Value:
    """An `i32` tensor as `i64`: its words, then its signs, side by side."""
    shape = list(hlo.shape_of(value))
    sign = hlo.op(
        "shift_right_arithmetic",
        [value, hlo.constant_like(value, WORD - 1)],
        [value.type],
    ).result
    low, high = (hlo.reshape(word, [*shape, 1]) for word in (value, sign))
    words = hlo.concatenate([low, high], len(shape))
    wide = ir.IntegerType.get_signless(2 * WORD)
    return _bitcast(words, hlo.tensor(shape, wide))


def _read_low_word(
    value: ir.Value, maker: ir.Operation | None, block: ir.Block
) -> None:
    """Give the computing users of a wide value its low words."""
    users = [(use.owner.operation, use.operand_number) for use in value.uses]
    users = [(op, i) for op, i in users if _is_computed(op)]
    if not users:
        return
    with _behind(maker, block):
        low = _word(value, 0)
    for op, i in users:
        op.operands[i] = low


def _use_high_words(function: ir.Operation, block: ir.Block) -> None:
    """`argument >> (32 + n)` reads the argument's high words."""
    for op in list(_walk(function)):
        if op.name != "stablehlo.shift_right_logical" or not _wide(op.results):
            continue
        value, amount = op.operands[0], _splat(op.operands[1])
        is_argument = any(value == a for a in block.arguments)
        if not is_argument or amount is None or not WORD <= amount < 2 * WORD:
            continue  # refused later, by name
        with _behind(None, block):
            high = _word(value, 1)
        with before(op):
            if amount > WORD:
                by = hlo.constant_like(high, amount - WORD)
                high = hlo.op("shift_right_logical", [high, by], [high.type]).result
        op.results[0].replace_all_uses_with(high)
        op.erase()


def _splat(value: ir.Value) -> int | None:
    """The one number of a constant, seen through broadcasts."""
    while (spread := defining(value, "broadcast_in_dim")) is not None:
        value = spread.operands[0]
    if (constant := defining(value, "constant")) is None:
        return None
    dense = ir.DenseIntElementsAttr(constant.attributes["value"])
    return int(dense[0]) if dense.is_splat else None


@contextmanager
def _behind(maker: ir.Operation | None, block: ir.Block) -> Iterator[None]:
    """Build right behind the op that makes a value, or first for an argument."""
    if maker is None:
        point, location = ir.InsertionPoint.at_block_begin(block), block.owner.location
    else:
        point, location = ir.InsertionPoint.after(maker), maker.location
    with point, location:
        yield
