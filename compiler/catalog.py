"""The only lists: every pcp pass by name, imported when it is asked for."""

from importlib import import_module

from pcp.errors import nearest
from pcp.passes.base import Pass, Pipeline, parse_pipeline

PASSES: dict[str, str] = {
    "pcp-grad": "pcp.autodiff.passes:Grad",
    "pcp-vjp": "pcp.autodiff.passes:Vjp",
}


def lookup(name: str) -> type[Pass] | None:
    """The class of a pcp pass, or None when it must be one of MLIR's own."""
    if (target := PASSES.get(name)) is None:
        if name.startswith("pcp-"):
            from pcp.errors import PassError

            raise PassError(f"no pass named {name!r}.{nearest(name, PASSES)}")
        return None
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def pipeline(text: str) -> Pipeline:
    """Parse a pipeline string against this catalog."""
    return parse_pipeline(text, lookup)
