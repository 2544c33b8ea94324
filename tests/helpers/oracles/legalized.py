"""Programs as pcp-legalize leaves them."""

from collections.abc import Sequence

import numpy as np
from helpers.servers.evaluator import Evaluator
from numpy.typing import ArrayLike

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.passes.ingest.import_ import Import
from pcp.passes.legalize.legalize import Legalize


class Legalized:
    """What runs a program, after the legalisation that a compile does first."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator

    def run(self, text: str, arguments: Sequence[ArrayLike]) -> list[np.ndarray]:
        """The results of `@main` in `text`."""
        module = parse(text)
        pipeline("builtin.module(pcp-legalize,cse)").run(module)
        return self.evaluator.run(str(module), arguments)


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
