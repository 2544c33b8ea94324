"""Calls and composites that have rules of their own; all others are inlined."""

from pcp.autodiff.core import custom
from pcp.autodiff.core.forward import Tangents, push_through
from pcp.autodiff.core.kinds import Refusal, Vjp
from pcp.dialect.bindings import ir


def _forward(op: ir.Operation, tangents: Tangents) -> None:
    """By the jvp function, or as the registered rule has it."""
    if not custom.forward(op, tangents):
        push_through(op, custom.registered(op), tangents)


#: Factorizations of JAX's (`frontends/linalg`). Most come with a rule of their own,
#: which goes first; what they are made of is iterated until it stands, and is not to
#: be differentiated.
_FACTORIZATIONS = Refusal(
    "this factorization came without a derivative: JAX has none of svd with "
    "full_matrices=True, of a part of a spectrum and of raw Householder vectors, and "
    "from_jax(rules=False) keeps none; take svd with full_matrices=False, the whole "
    "spectrum, or qr, or put jax.lax.stop_gradient on its operand"
)

RULES = {
    "func.call": Vjp(custom.reverse, _forward),
    "composite": Vjp(custom.reverse, _forward),
    **{
        f"composite:jax.{name}": _FACTORIZATIONS
        for name in (
            "eigh",
            "geqrf",
            "householder_product",
            "lu",
            "ormqr",
            "qr",
            "svd",
        )
    },
}
