"""What the arguments and results of a JAX function are, as its caller says.

    loss                                  params, data
    (loss, metrics)                       has_aux: a tree of scalars
    (loss, new_state)                     state: a tree like the argument's
    (loss, (new_state, metrics))          both

A leaf is named by its path behind the argument's name; a metric by its path.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pcp.dialect.roles import GIVEN
from pcp.errors import IRError, UsageError
from pcp.frontends.signature import Argument, Result, describe_init

Leaf = tuple[int, str, Any]
"""Position of the argument, name, value."""


@dataclass(frozen=True)
class Roles:
    """Positions of arguments by role; all others are data."""

    params: Collection[int]
    state: Collection[int] = ()
    frozen: Collection[int] = ()
    key: int | None = None
    has_aux: bool = False

    def check(self, count: int) -> None:
        """`UsageError` for a position that is none, or has two roles."""
        keys = () if self.key is None else (self.key,)
        groups = {
            "params": [p for p in self.params if p or count],  # 0 is the default
            "state": self.state,
            "frozen": self.frozen,
            "key": keys,
        }
        for name, positions in groups.items():
            if beyond := sorted(set(positions) - {*range(count)}):
                raise UsageError(
                    f"{name}={sorted(positions)}: there is no argument {beyond[0]}; "
                    f"{count} are given, 0 to {count - 1}"
                )
        told = [position for each in groups.values() for position in each]
        if twice := [p for p in told if told.count(p) > 1]:
            raise UsageError(f"argument {twice[0]} is given two roles; it has one")

    def argument(self, position: int, name: str, value: Any) -> Argument:
        """The argument of a leaf."""
        if position == self.key:
            return Argument(name, "key")
        if position in self.state:
            return Argument(name, "state", _first_value(value))
        if position in self.frozen:
            return Argument(name, "frozen")
        if position not in self.params:
            return Argument(name, "data")
        if not is_float(value):
            return Argument(name, "frozen")
        init = describe_init(np.asarray(value)) if is_concrete(value) else None
        return Argument(name, "param", init)

    def results(
        self, jax: Any, fn: Callable[..., Any], args: Any, leaves: Sequence[Leaf]
    ) -> list[Result]:
        """The results in order; none where the loss is all there is to say."""
        if not (self.has_aux or self.state):
            return []
        returned = jax.eval_shape(fn, *args)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise IRError(
                f"{name_of(fn)} returns no pair; with state or has_aux it returns the "
                "loss and what comes beside it"
            )
        state, metrics = self._beside(fn, returned[1])
        self._check_state(jax, fn, args, state)
        names = [name for p in self._written for q, name, _ in leaves if q == p]
        found = [Result("loss", "loss"), *(Result(name, "state") for name in names)]
        return found + _metrics(jax, fn, metrics)

    @property
    def _written(self) -> list[int]:
        return sorted(self.state)

    def _beside(self, fn: Callable[..., Any], beside: Any) -> tuple[Any, Any]:
        """The new state, a tuple, and the metrics."""
        if not self.state:
            return (), beside
        metrics: Any = ()
        if self.has_aux:
            if not isinstance(beside, tuple) or len(beside) != 2:
                raise IRError(
                    f"{name_of(fn)}: beside the loss stands no pair of the new state "
                    "and the metrics"
                )
            beside, metrics = beside
        return (beside if len(self.state) > 1 else (beside,)), metrics

    def _check_state(
        self, jax: Any, fn: Callable[..., Any], args: Any, state: Any
    ) -> None:
        given = tuple(args[position] for position in self._written)
        old, new = map(jax.tree_util.tree_structure, (given, tuple(state)))
        if old != new:
            raise IRError(
                f"{name_of(fn)}: the new state is {new}, and the argument is {old}"
            )


def _metrics(jax: Any, fn: Callable[..., Any], metrics: Any) -> list[Result]:
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(metrics)[0]:
        name = ".".join(map(key_text, path)) or "metric1"
        if leaf.shape:
            raise IRError(
                f"{name_of(fn)}: the metric {name} has the shape {list(leaf.shape)}; a "
                "metric is one scalar, as its mean"
            )
        found.append(Result("loss.metric" if name == "loss" else name, "metric"))
    return found


def key_text(step: Any) -> str:
    """One step of a path: a dict key, an index, or a field's name."""
    for field in ("key", "idx", "name"):
        if hasattr(step, field):
            return str(getattr(step, field))
    return str(step)


def name_of(fn: Callable[..., Any]) -> str:
    """A function's name, for messages."""
    return getattr(fn, "__name__", type(fn).__name__)


def _first_value(value: Any) -> str:
    """How state starts: a constant that it is full of, or its value as it is."""
    if not is_concrete(value):
        return "zeros"
    flat = np.asarray(value).reshape(-1)
    if not flat.size or flat.dtype.kind == "c" or not np.all(flat == flat[0]):
        return GIVEN
    number = float(flat[0])
    if not np.isfinite(number) or number != flat[0]:
        return GIVEN
    return {0.0: "zeros", 1.0: "ones"}.get(number) or f"constant({number!r})"


def is_concrete(value: Any) -> bool:
    """Whether it has a value, and not a shape and type alone."""
    return type(value).__name__ != "ShapeDtypeStruct"


def is_float(value: Any) -> bool:
    """Whether a leaf can be trained."""
    if is_concrete(value):
        value = np.asarray(value)
    # bfloat16 and the small floats are of kind "V" in numpy.
    return np.dtype(value.dtype).kind not in "biu"
