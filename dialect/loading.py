"""Load the pcp dialect into a context, as often as one likes."""

from threading import Lock

from pcp.dialect import (  # importing a family adds its ops to the dialect
    annotation,
    asynchronous,
    collectives,
    derivatives,
    description,
    point_to_point,
    schedule,
    state,
    training,
)
from pcp.dialect.base import Pcp
from pcp.dialect.bindings import ir

FAMILIES = (
    description,
    annotation,
    collectives,
    point_to_point,
    asynchronous,
    state,
    schedule,
    training,
    derivatives,
)


# `ext` keeps what it is loading in the class.
_lock = Lock()


def load(context: ir.Context) -> None:
    """Make the pcp ops known to `context`; a second call does nothing."""
    with _lock, context:
        if context.is_dialect_loaded(Pcp.DIALECT_NAMESPACE):
            return
        Pcp.load()
        # `ext` keeps the definitions, and through them the context, alive.
        del Pcp._mlir_module
