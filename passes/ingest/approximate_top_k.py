"""The `ApproxTopK` of `jax.lax.approx_max_k` and `approx_min_k`, found exactly.

A recall target is a lower bound, and CPUs have no faster way with less recall.
"""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import (
    before,
    defining,
    functions,
    integer,
    operations,
    refuse,
    replace,
)

TARGET = "ApproxTopK"
CONFIG = "mhlo.backend_config"
CALLED = "called_computations"


def make_exact(module: ir.Module) -> None:
    """Each `ApproxTopK` as `chlo.top_k`; its comparator goes with the last of them."""
    found = [op for op in operations(module) if _is_approximate(op)]
    comparators = {op.name: op for op in map(_Comparator, functions(module))}
    used: set[str] = set()
    for op in found:
        called = [ir.FlatSymbolRefAttr(s).value for s in _called(op)]
        used.update(called)
        least = comparators[called[0]].is_least(op)
        with before(op):
            values = _exact(op, least)
        replace(op, values)
    still = {str(s) for op in operations(module) for s in _called(op)}
    for name in used:
        if f"@{name}" not in still:
            comparators[name].function.erase()


def _is_approximate(op: ir.Operation) -> bool:
    if op.name != "stablehlo.custom_call":
        return False
    return ir.StringAttr(op.attributes["call_target_name"]).value == TARGET


def _called(op: ir.Operation) -> list[ir.Attribute]:
    return list(ir.ArrayAttr(op.attributes[CALLED])) if CALLED in op.attributes else []


class _Comparator:
    """A function of pairs of values and positions: whether the first goes before."""

    def __init__(self, function: ir.Operation) -> None:
        self.function = function
        self.name = ir.StringAttr(function.attributes["sym_name"]).value

    def is_least(self, call: ir.Operation) -> bool:
        """Whether small values go before large ones; another order is an error."""
        block = self.function.regions[0].blocks[0]
        first, *rest = [view.operation for view in block.operations]
        if first.name == "stablehlo.compare" and len(rest) == 1:
            direction = str(first.attributes["comparison_direction"])
            given = [*first.operands] == [*block.arguments][:2]
            for sign in ("GT", "LT") if given else ():
                if f" {sign}>" in direction:
                    return sign == "LT"
        refuse(call, f"@{self.name} compares by more than GT or LT of the values")


def _exact(op: ir.Operation, least: bool) -> list[ir.Value]:
    """As many of the first as the results hold; what is beyond all, the initial value.

    Without `aggregate_to_topk` the results hold more than `k`, in no order that is
    promised: the best of them then are the best `k`.
    """
    x, positions, *starts = op.operands
    dimension = _reduced(op)
    counted = defining(positions, "iota")
    if counted is None or integer(counted, "iota_dimension") != dimension:
        refuse(op, "its second operand is not the positions of the first; give an iota")
    shape, asked = hlo.shape_of(x), hlo.shape_of(op.results[0])[dimension]
    count = min(asked, shape[dimension])
    order = [d for d in range(len(shape)) if d != dimension] + [dimension]
    back = [order.index(d) for d in range(len(shape))]
    rows = hlo.transpose(hlo.negate(x) if least else x, order)
    picked = (*hlo.shape_of(rows)[:-1], count)
    types = [
        hlo.tensor(picked, hlo.element_type(x)),
        hlo.tensor(picked, ir.IntegerType.get_signless(32)),
    ]
    values, places = hlo.op("chlo.top_k", [rows], types, k=hlo.i64(count)).results
    found = [
        hlo.negate(values) if least else values,
        hlo.convert(places, hlo.element_type(positions)),
    ]
    found = [hlo.transpose(value, back) for value in found]
    if asked == count:
        return found
    none = [0] * len(shape)
    beyond = [asked - count if d == dimension else 0 for d in range(len(shape))]
    return [hlo.pad(*pair, none, beyond) for pair in zip(found, starts, strict=True)]


def _reduced(op: ir.Operation) -> int:
    if CONFIG not in op.attributes:
        refuse(op, f"@{TARGET} without {CONFIG}; write chlo.top_k")
    return ir.IntegerAttr(ir.DictAttr(op.attributes[CONFIG])["reduction_dim"]).value
