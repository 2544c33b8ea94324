"""Ops without collectives, run by the StableHLO reference interpreter."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pcp.compiler.exchanges import Array
from pcp.dialect import function_body
from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.inlining import remap
from pcp.passes.core.base import CppPasses

#: Arrays, and futures and tuples of them, by the value of the program.
Values = dict[ir.Value, Any]


def evaluate(segment: Sequence[ir.Operation], values: Values) -> None:
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
        with ir.InsertionPoint(module.body):
            name, types = function_body.named("main"), [v.type for v in given]
            main, block = function_body.begin(name, types)
        moved = dict(zip(given, block.arguments, strict=True))
        with ir.InsertionPoint(block):
            for op in segment:
                copy = op.clone()
                copy.walk(lambda inner: remap(inner, moved))
                moved.update(zip(op.results, copy.results, strict=True))
        function_body.finish(main, [moved[v] for v in wanted])
    if any(op.name.startswith("chlo.") for op in segment):
        CppPasses("func.func(chlo-legalize-to-stablehlo)").run(module)
    return module
