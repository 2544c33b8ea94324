"""Make what a frontend left half computed plain: constants are constants.

torch-mlir turns Python numbers into `arith.constant` of f64 or i64 followed by
conversions and reshapes, and `arange` into a `dynamic_iota` whose length is
computed in f64:

    %0 = arith.constant dense<1.0e-05> : tensor<1xf64>
    %1 = stablehlo.convert %0 : (tensor<1xf64>) -> tensor<1xf32>
    %2 = stablehlo.reshape %1 : (tensor<1xf32>) -> tensor<f32>

becomes

    %2 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>

The reference interpreter does the arithmetic, so the values are exact.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from pcp.dialect import function_body, hlo
from pcp.dialect.bindings import PassManager, ir, stablehlo
from pcp.frontends.signature import entry

# Large constants stay as they were written: folding them would only move bytes.
MAX_ELEMENTS = 1 << 16

_PURE = ("stablehlo.", "pcp.stop_gradient")

_FOLDABLE = {
    f"stablehlo.{name}"
    for name in (
        "add", "ceil", "convert", "divide", "floor", "multiply", "negate", "not",
        "power", "reshape", "sqrt", "subtract",
    )
}  # fmt: skip


def tidy(module: ir.Module, function: str = "main") -> None:
    """Fold constants in `@function`, drop no-op conversions and dead code."""
    block = entry(module, function).regions[0].blocks[0]
    with module.context:
        for op in list(block.operations):
            _make_static(op.operation)
        fold_constants(block)
        erase_dead(block)
        PassManager.parse("builtin.module(cse)").run(module.operation)


def _make_static(op: ir.Operation) -> None:
    """One op in its static StableHLO form; others stay as they are."""
    with op.location, ir.InsertionPoint(op):
        if op.name == "arith.constant" and _is_dense(op.attributes["value"]):
            value = op.attributes["value"]
            new = hlo.op("constant", [], [op.results[0].type], value=value).result
        elif op.name == "stablehlo.dynamic_iota" and _is_static(op.results[0].type):
            dimension = ir.IntegerAttr(op.attributes["iota_dimension"]).value
            new = hlo.iota(op.results[0].type, dimension)
        elif op.name == "stablehlo.convert" and _is_noop(op):
            new = op.operands[0]
        else:
            return
    op.results[0].replace_all_uses_with(new)
    op.erase()


def _is_dense(attribute: ir.Attribute) -> bool:
    return isinstance(attribute, ir.DenseElementsAttr)


def _is_static(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and type_.has_static_shape


def _is_noop(op: ir.Operation) -> bool:
    return op.operands[0].type == op.results[0].type


def freeze_arguments(
    module: ir.Module, arrays: Mapping[int, np.ndarray], function: str = "main"
) -> None:
    """Make constants of the arguments at these positions.

    An array holds the bytes of its argument: bfloat16, which numpy lacks, comes
    as int16.
    """
    op = entry(module, function)
    block = op.regions[0].blocks[0]
    with module.context, op.location:
        with ir.InsertionPoint.at_block_begin(block):
            for i, array in arrays.items():
                argument = block.arguments[i]
                argument.replace_all_uses_with(dense(array, argument.type))
        for i in sorted(arrays, reverse=True):
            block.erase_argument(i)
        function_body.retype(op)


def dense(array: np.ndarray, type_: ir.Type) -> ir.Value:
    """A constant with these bytes, at the insertion point."""
    element = hlo.element_type(type_)
    value = ir.DenseElementsAttr.get(
        np.ascontiguousarray(array), type=element, shape=hlo.shape_of(type_)
    )
    return hlo.op("constant", [], [type_], value=value).result


def fold_constants(block: ir.Block) -> None:
    """Replace every foldable op of small constants that is used by something
    else with a `stablehlo.constant`, all evaluated in one run."""
    folded = list(_foldable(block))
    frontier = [op for op in folded if _is_used_outside(op, folded)]
    if not frontier:
        return
    for op, value in zip(frontier, _evaluate(block, frontier), strict=True):
        with op.location, ir.InsertionPoint(op):
            new = hlo.op("constant", [], [op.results[0].type], value=value).result
        op.results[0].replace_all_uses_with(new)


def _foldable(block: ir.Block) -> Iterator[ir.Operation]:
    """Ops, in order, that depend on small constants alone."""
    known: set[ir.Value] = set()
    for view in block.operations:
        op = view.operation
        if op.name == "stablehlo.constant" and _is_small(op):
            known.add(op.results[0])
        elif op.name in _FOLDABLE and _is_small(op):
            if all(operand in known for operand in op.operands):
                known.add(op.results[0])
                yield op


def _is_small(op: ir.Operation) -> bool:
    type_ = op.results[0].type
    return _is_static(type_) and hlo.size(type_) <= MAX_ELEMENTS


def _is_used_outside(op: ir.Operation, folded: list[ir.Operation]) -> bool:
    inside = set(map(hash, folded))
    return any(hash(use.owner.operation) not in inside for use in op.results[0].uses)


def _evaluate(block: ir.Block, wanted: list[ir.Operation]) -> list[ir.Attribute]:
    """Values of `wanted`, computed by the StableHLO interpreter."""
    needed = _closure(wanted)
    with ir.Location.unknown():
        program = ir.Module.create()
        with ir.InsertionPoint(program.body):
            main, body = function_body.begin(function_body.named("main"), [])
        values: dict[ir.Value, ir.Value] = {}
        with ir.InsertionPoint(body):
            for view in block.operations:
                if hash(view.operation) in needed:
                    _copy(view.operation, values)
        function_body.finish(main, [values[op.results[0]] for op in wanted])
    return stablehlo.eval_module(program, [])


def _closure(wanted: list[ir.Operation]) -> set[int]:
    """`wanted` and all that they are computed from, by hash of the operation."""
    needed: set[int] = set()
    pending = list(wanted)
    while pending:
        op = pending.pop()
        if hash(op) not in needed:
            needed.add(hash(op))
            pending += [operand.owner.operation for operand in op.operands]
    return needed


def _copy(op: ir.Operation, values: dict[ir.Value, ir.Value]) -> None:
    operands = [values[operand] for operand in op.operands]
    copy = ir.Operation.create(
        op.name,
        operands=operands,
        results=[result.type for result in op.results],
        attributes={name: op.attributes[name] for name in op.attributes},
    )
    values[op.results[0]] = copy.results[0]


def erase_dead(block: ir.Block) -> None:
    """Erase StableHLO ops and stops without uses, last first."""
    for view in reversed(list(block.operations)):
        op = view.operation
        used = any(True for result in op.results for _ in result.uses)
        if not used and op.name.startswith(_PURE) and op.results:
            op.erase()
