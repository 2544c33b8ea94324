"""Load the pcp dialect into a context, as often as one likes."""

from pcp.dialect.bindings import ir


def load(context: ir.Context) -> None:
    """Make the pcp ops known to `context`; a second call does nothing."""
