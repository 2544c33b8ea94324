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
from pcp.dialect.bindings import ext, ir
from pcp.errors import ConfigError

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

_registered: list[type[ext.Dialect]] = []

#: Dialects that every program may have.
_OWN = ("builtin", "func", "arith", "stablehlo", "chlo", "vhlo", "sdy", "pcp")


def register(dialect: type[ext.Dialect]) -> None:
    """Load a dialect from outside into every context from now on; again does nothing.

    Its ops are classes as those of this package are, made before this is called.
    `ConfigError` for a name that another dialect has.
    """
    name = dialect.DIALECT_NAMESPACE
    if dialect not in _registered:
        if name in (*_OWN, *registered()):
            raise ConfigError(f"dialect {name!r} is there already; choose another name")
        _registered.append(dialect)


def registered() -> list[str]:
    """The names of the dialects from outside."""
    return [dialect.DIALECT_NAMESPACE for dialect in _registered]


def load(context: ir.Context) -> None:
    """Make the pcp ops known to `context`; a second call does nothing."""
    with _lock, context:
        if context.is_dialect_loaded(Pcp.DIALECT_NAMESPACE):
            return
        for dialect in (Pcp, *_registered):
            dialect.load()
            # `ext` keeps the definitions, and through them the context, alive.
            del dialect._mlir_module
