"""Programs as pcp-legalize leaves them."""

from pcp.dialect.context import parse
from pcp.passes.ingest.import_ import Import
from pcp.passes.legalize.legalize import Legalize


def legalized(text: str, *, stable: bool = True) -> str:
    """The program after pcp-import and pcp-legalize, verified and `stable`."""
    module = parse(text)
    Import().run(module)
    Legalize().run(module)
    assert module.operation.verify()
    once = str(module)
    if stable:
        Legalize().run(module)
        assert str(module) == once
    return once
