"""Calls and composites that have rules of their own; all others are inlined."""

from pcp.autodiff.core import custom
from pcp.autodiff.core.forward import Tangents, push_through
from pcp.autodiff.core.kinds import Vjp
from pcp.dialect.bindings import ir


def _forward(op: ir.Operation, tangents: Tangents) -> None:
    """By the jvp function, or as the registered rule has it."""
    if not custom.forward(op, tangents):
        push_through(op, custom.registered(op), tangents)


RULES = {
    "func.call": Vjp(custom.reverse, _forward),
    "composite": Vjp(custom.reverse, _forward),
}
