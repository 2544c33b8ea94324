"""What two machines may compute differently from the same bits.

IEEE 754 says what one operation rounds to, but a compiler fuses a product into a sum,
orders the terms of a reduction, and approximates functions as it likes best on each
target. So floats that are computed may differ in the last place; what only moves,
selects or compares them may not, nor what integers make.

A *decision* is what a last place can turn over: a comparison, an index, the order of a
sort. Two members that decide differently hold what no rounding explains.
"""

from pcp.dialect.bindings import ir
from pcp.dialect.hlo import is_complex, is_float
from pcp.passes.core.walk import CONTROL_FLOW

#: Float results of these are among the operands, up to their sign.
_EXACT = frozenset(
    f"stablehlo.{name}"
    for name in (
        "abs bitcast_convert broadcast_in_dim ceil clamp complex concatenate constant "
        "dynamic_slice dynamic_update_slice floor gather imag iota maximum minimum "
        "negate optimization_barrier pad real reshape reverse round_nearest_afz "
        "round_nearest_even select sign slice transpose"
    ).split()
) | {"arith.constant", "builtin.unrealized_conversion_cast", "chlo.top_k"}

#: Their floats are as exact as what their bodies compute.
_BODIES = frozenset(
    f"stablehlo.{name}"
    for name in "map reduce reduce_window scatter select_and_scatter sort".split()
)

#: Floats in, floats out, and a step in between.
_STEPS = frozenset(
    f"stablehlo.{name}"
    for name in (
        "ceil floor remainder round_nearest_afz round_nearest_even select_and_scatter "
        "sign"
    ).split()
)


def rounds(op: ir.Operation) -> bool:
    """Whether unlike machines may make other floats of the same operands."""
    if not any(_is_inexact(value) for value in op.results):
        return False
    if op.name in _EXACT or op.name in CONTROL_FLOW or op.name.startswith("pcp."):
        return False
    if op.name == "stablehlo.convert":
        return not _converts_exactly(op)
    if op.name in _BODIES:
        return any(map(rounds, _inner(op)))
    return True


def decisions(op: ir.Operation) -> list[ir.Value]:
    """The results that a last place of the operands can change beyond rounding."""
    if op.name in _STEPS or (op.name == "stablehlo.sort" and len(op.results) > 1):
        return list(op.results)
    return [v for v in op.results if isinstance(_element(v), ir.IntegerType)]


def _inner(op: ir.Operation) -> list[ir.Operation]:
    return [
        view.operation
        for region in op.regions
        for block in region.blocks
        for view in block.operations
    ]


def _converts_exactly(op: ir.Operation) -> bool:
    """From integers, which rounds alike everywhere, or to a wider float."""
    old, new = _element(op.operands[0]), _element(op.results[0])
    if is_float(old) and is_float(new):
        return ir.FloatType(new).width > ir.FloatType(old).width or old == new
    return isinstance(old, ir.IntegerType)


def _element(value: ir.Value) -> ir.Type:
    type_ = value.type
    return type_.element_type if isinstance(type_, ir.ShapedType) else type_


def _is_inexact(value: ir.Value) -> bool:
    element = _element(value)
    return is_float(element) or is_complex(element)
