"""Floats narrower than f32: which they are, and the ops that only move or contract."""

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.passes.core.rewriting import CONTRACTIONS

#: Ops that only move elements.
MOVES = frozenset(
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "reshape", "slice", "transpose")
)


def is_narrow(element: ir.Type) -> bool:
    """Whether it is a float of fewer than 32 bits."""
    return isinstance(element, ir.FloatType) and ir.FloatType(element).width < 32


def is_f32(x: ir.Value) -> bool:
    """Whether it is a tensor of f32."""
    ranked = isinstance(x.type, ir.RankedTensorType)
    return ranked and isinstance(hlo.element_type(x), ir.F32Type)


def is_free_contraction(op: ir.Operation) -> bool:
    """Whether an op is an f32 contraction that leaves its precision to us."""
    if op.name not in CONTRACTIONS or hlo.attribute(op, "algorithm") is not None:
        return False
    if "HIGH" in str(hlo.attribute(op, "precision_config")):
        return False
    return all(map(is_f32, (*op.operands, *op.results)))
