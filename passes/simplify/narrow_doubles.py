"""Double precision inside of a function, done in single precision instead."""

import numpy as np

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core import constants
from pcp.passes.core.rewriting import before, refuse, replace

# What looks at the bits of an f64, or hands them to code that is not here.
_OPAQUE = ("stablehlo.bitcast_convert", "stablehlo.custom_call", "func.call")


def narrow_f64(function: ir.Operation) -> bool:
    """Make every f64 in `function` an f32; whether it did.

    Nothing is done when an argument or result is f64, or when an op sees the
    bits of one.
    """
    f64, f32 = ir.F64Type.get(function.context), ir.F32Type.get(function.context)
    signature = ir.TypeAttr(function.attributes["function_type"]).value
    if "f64" in str(signature):
        return False
    ops = _inside(function)
    wide = [op for op in ops if any(_is(v, f64) for v in (*op.operands, *op.results))]
    if not wide or any(op.name in _OPAQUE for op in wide):
        return False
    for op in ops:
        for region in op.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    _narrow(argument, f64, f32)
        if op.name == "stablehlo.constant" and _is(op.result, f64):
            _narrow_constant(op, f32)
            continue
        for result in op.results:
            _narrow(result, f64, f32)
    return True


def _inside(function: ir.Operation) -> list[ir.Operation]:
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        found.append(op.operation)
        return ir.WalkResult.ADVANCE

    function.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found[1:]


def _is(value: ir.Value, element: ir.Type) -> bool:
    type_ = value.type
    return isinstance(type_, ir.RankedTensorType) and type_.element_type == element


def _narrow(value: ir.Value, f64: ir.Type, f32: ir.Type) -> None:
    if _is(value, f64):
        with ir.Location.unknown(f64.context):
            value.set_type(hlo.like(value, element=f32))


def _narrow_constant(op: ir.Operation, f32: ir.Type) -> None:
    wide = constants.array(op.result)
    if wide is None:
        refuse(op, "its elements cannot be read; write it as dense f64")
    with before(op), np.errstate(over="ignore"):
        narrow = wide.astype(np.float32)
        replace(op, [constants.make(narrow, hlo.like(op.result, element=f32))])
