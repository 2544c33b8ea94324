"""The names under which a worker's state travels and is saved.

    parameter/<name>      the parameters                  \\ shared: all members agree
    outer/<name>          the outer algorithm's state     /  on them, by digest
    private/<rank>/<name> outer state of a worker's own
    inner/<rank>/<name>   state of its inner optimizer

Where workers have parameters of their own, these are `private/<rank>/replica.<name>`.

`<rank>` is a rank in a checkpoint. In what a worker hands out itself, its inner state
is that of rank 0, for newcomers to start with, and its private state is `own`, which
no other worker may take.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pcp.errors import StateMismatch
from pcp.manifest import Parameter
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.training.storage.safetensors_io import Arrays

PARAMETER, OUTER, PRIVATE, INNER = "parameter/", "outer/", "private/", "inner/"
OWN = "own"
REPLICA = "replica."
"""Parameters that are a worker's own, among its private state."""


def prefixed(prefix: str, names: Sequence[str], arrays: Iterable[Any]) -> Arrays:
    """The arrays by their names behind the prefix."""
    return {prefix + name: a for name, a in zip(names, arrays, strict=True)}


def under(prefix: str, arrays: Mapping[str, Any]) -> Arrays:
    """The arrays with names that begin with the prefix, without it."""
    return {
        k.removeprefix(prefix): a for k, a in arrays.items() if k.startswith(prefix)
    }


def moved(arrays: Mapping[str, Any], old: str, new: str) -> Arrays:
    """All arrays; those under the prefix `old` go under `new`."""
    return {
        new + k.removeprefix(old) if k.startswith(old) else k: a
        for k, a in arrays.items()
    }


def shared_part(arrays: Mapping[str, Any]) -> Arrays:
    """The part of a state that all members of a group agree on."""
    return {k: a for k, a in arrays.items() if k.startswith((PARAMETER, OUTER))}


def as_masters(
    arrays: Mapping[str, Any], parameters: Iterable[Parameter], prefix: str = ""
) -> Arrays:
    """The arrays; a parameter that comes as the model has it, as its f32 master."""
    new = dict(arrays)
    for p in parameters:
        given = new.get(prefix + p.name)
        if p.compute and given is not None and given.dtype == numpy_dtype(p.compute):
            new[prefix + p.name] = given.astype(numpy_dtype(p.dtype))
    return new


def unlike(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names of `old` for which `new` has another kind of array, and that, or None."""
    for name, array in old.items():
        other = new.get(name)
        if other is None or other.shape != array.shape or other.dtype != array.dtype:
            yield name, other


def check_like(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """`StateMismatch` unless `new` has all arrays of `old`, of their kind."""
    for name, other in unlike(old, new):
        array = old[name]
        found = "nothing" if other is None else f"{other.dtype} {other.shape}"
        raise StateMismatch(
            f"{name}: {found} for a tensor of {array.dtype} {array.shape}; is this "
            "the state of another model?"
        )
