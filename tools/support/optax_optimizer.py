"""optax optimizers among those of pcp: a name, and what traces them."""

import re
from collections.abc import Sequence
from dataclasses import make_dataclass
from typing import Any, cast

import numpy as np

from pcp.errors import ConfigError
from pcp.frontends import optax as frontend
from pcp.passes.core import spec as specs
from pcp.passes.training.optimizers import spec as optimizers
from pcp.passes.training.optimizers.imported import ImportedRule, Leaf, Traced
from pcp.passes.training.optimizers.spec import Imported


def register(tx: Any, params: Any, name: str) -> Imported:
    """Know `tx` by a name; `ConfigError` for one that is taken."""

    def trace(leaves: Sequence[Leaf]) -> Traced:
        rows = [(leaf.name, leaf.shape, leaf.dtype) for leaf in leaves]
        functions = frontend.functions_of(tx, params, rows)
        state = [
            Leaf(path, tuple(leaf.shape), np.dtype(leaf.dtype).name)
            for path, leaf in functions.state
        ]
        return Traced(functions.init_text(), functions.update_text(), state)

    if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
        raise ConfigError(f"from_optax: name={name!r}: letters, digits, . _ and -")
    made = make_dataclass(
        name, [], bases=(Imported,), namespace={"kind": name}, frozen=True
    )
    cls = cast(type[Imported], made)
    specs.register(optimizers.KINDS, cls, ImportedRule(trace))
    return cls()
