"""The names of the tensors of a worker's state, in snapshots and checkpoints.

    parameter/<name>      the parameters                  \\
    state/<name>          the program's state              | shared: all members agree
    outer/<name>          the outer algorithm's state     /  on them, by digest
    private/<rank>/<name> outer state of a worker's own
    inner/<rank>/<name>   state of its inner optimizer

Replicas are `private/<rank>/replica.<name>`. `frozen/<name>` are frozen tensors: they
are in no digest and in no checkpoint, and a worker that joins fetches them once.

`<rank>` is a rank in a checkpoint. In a worker's own snapshot its inner state is that
of rank 0, from which newcomers start, and its private state is `own`, which no other
worker may take.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pcp.errors import StateMismatch
from pcp.manifest import Parameter, TensorSpec
from pcp.runtime.memory.dtypes import numpy_dtype
from pcp.training.storage.safetensors_io import Arrays

PARAMETER, OUTER, PRIVATE, INNER = "parameter/", "outer/", "private/", "inner/"
STATE, FROZEN = "state/", "frozen/"
SHARED = (PARAMETER, STATE, OUTER)
"""The prefixes of shared state."""
OF_A_ROUND = (*SHARED, PRIVATE, INNER)
"""The prefixes of the state of a committed round."""
AVERAGE = "ema."
"""The prefix of a parameter's average, in the program's state."""
OWN = "own"
REPLICA = "replica."
"""The prefix of replicas, in a worker's private state."""


def prefixed(prefix: str, names: Sequence[str], arrays: Iterable[Any]) -> Arrays:
    """The arrays, with the prefix before their names."""
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
    """The part of a state that all members of a group share."""
    return {k: a for k, a in arrays.items() if k.startswith(SHARED)}


def as_masters(
    arrays: Mapping[str, Any], parameters: Iterable[Parameter], prefix: str = ""
) -> Arrays:
    """The arrays, with the f32 master for each parameter in the model's dtype."""
    new = dict(arrays)
    for p in parameters:
        given = new.get(prefix + p.name)
        if p.compute and given is not None and given.dtype == numpy_dtype(p.compute):
            new[prefix + p.name] = given.astype(numpy_dtype(p.dtype))
    return new


def as_taken(
    arrays: Mapping[str, Any], specs: Iterable[TensorSpec | Parameter]
) -> Arrays:
    """The arrays, with floats in the float types of a program.

    Files that numpy wrote have f32 for bf16.
    """
    new = dict(arrays)
    for spec in specs:
        given, wanted = new.get(spec.name), numpy_dtype(spec.dtype)
        floats = spec.dtype.startswith(("f", "bf"))
        if given is not None and floats and given.dtype.kind in "fV":
            new[spec.name] = given.astype(wanted)
    return new


def averaged(parameters: Mapping[str, Any], state: Mapping[str, Any]) -> Arrays:
    """The parameters, each as its average in the program's state, if it has one."""
    found = dict(parameters)
    for name, own in parameters.items():
        if (average := state.get(AVERAGE + name)) is not None:
            found[name] = average.astype(own.dtype)
    return found


def unlike(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names of `old` of another kind in `new`, each with its array there or None."""
    for name, array in old.items():
        other = new.get(name)
        if other is None or other.shape != array.shape or other.dtype != array.dtype:
            yield name, other


def like(spec: TensorSpec | Parameter) -> np.ndarray:
    """An array of a tensor's kind, in the memory of one element."""
    return np.broadcast_to(np.zeros((), numpy_dtype(spec.dtype)), spec.shape)


def check_like(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """`StateMismatch` unless `new` has all arrays of `old`, of their kind."""
    for name, other in unlike(old, new):
        array = old[name]
        found = "nothing" if other is None else f"{other.dtype} {other.shape}"
        raise StateMismatch(
            f"{name}: {found} for a tensor of {array.dtype} {array.shape}; is this "
            "the state of another model?"
        )
