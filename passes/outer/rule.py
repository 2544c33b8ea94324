"""The shape of an outer algorithm.

`step(spec, anchors, locals, momenta, tokens)` gives the new parameters and the new
momenta. It has `has_momentum(spec)` tensors of state, one a parameter and of its
shape, or none. `every_step(spec, gradients, tokens)`, for those that act inside the
steps, gives the gradients to apply.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pcp.dialect.bindings import ir

Values = Sequence[ir.Value]


@dataclass(frozen=True)
class OuterRule:
    """One algorithm; at most one of `step` and `every_step` is there."""

    step: Callable[..., tuple[list[ir.Value], list[ir.Value]]] | None = None
    has_momentum: Callable[[Any], bool] = lambda spec: False
    every_step: Callable[[Any, Values, ir.Value], list[ir.Value]] | None = None
