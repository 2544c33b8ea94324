"""Floats narrower than f32: which they are, and the ops that only move or contract."""

from pcp.dialect.bindings import ir

#: Ops that only move elements.
MOVES = frozenset(
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "reshape", "slice", "transpose")
)

CONTRACTIONS = ("stablehlo.convolution", "stablehlo.dot", "stablehlo.dot_general")


def is_narrow(element: ir.Type) -> bool:
    """Whether it is a float of fewer than 32 bits."""
    return isinstance(element, ir.FloatType) and ir.FloatType(element).width < 32
