"""Programs as pcp-legalize leaves them."""

from collections.abc import Sequence

import numpy as np
from helpers.servers.iree_server import Iree
from numpy.typing import ArrayLike

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.passes.ingest.import_ import Import
from pcp.passes.legalize.legalize import Legalize


class Legalized:
    """IREE after the legalisation that a compile does first."""

    def __init__(self, iree: Iree) -> None:
        self.iree = iree

    def run(self, text: str, arguments: Sequence[ArrayLike]) -> list[np.ndarray]:
        """The results of `@main` in `text`."""
        module = parse(text)
        pipeline("builtin.module(pcp-legalize,cse)").run(module)
        return self.iree.run(str(module), arguments)


def legalized(text: str) -> str:
    """The program after pcp-import and pcp-legalize, which is idempotent."""
    module = parse(text)
    Import().run(module)
    Legalize().run(module)
    assert module.operation.verify()
    once = str(module)
    Legalize().run(module)
    assert str(module) == once
    return once
