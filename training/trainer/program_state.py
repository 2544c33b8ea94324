"""The state that a program writes, and its metrics, between the calls of `@grad`.

The state is shared (`pcp.training.storage.state_names`): at the end of a round
`@state_sync` joins the states of all members.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pcp.manifest import Manifest
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import PARAMETER, STATE

SYNC = "state_sync"


def counted(manifest: Manifest) -> list[str]:
    """The names of state that is the sum of all members' counts."""
    if SYNC not in manifest.functions:
        return []
    takes = manifest.function(SYNC).inputs
    return [t.name for t in takes if t.role == "anchor"]


def of_snapshot(snapshot: Mapping[str, np.ndarray], first: Arrays) -> Arrays:
    """The program's state in a snapshot, among its weights, or its first values."""
    found = {}
    for key, value in first.items():
        among_weights = snapshot.get(PARAMETER + key.removeprefix(STATE), value)
        if among_weights.dtype != value.dtype and among_weights.dtype.kind in "fV":
            among_weights = among_weights.astype(value.dtype)
        found[key] = np.array(snapshot.get(key, among_weights))
    return found


def summary(entries: Sequence[Mapping[str, Any]]) -> dict[str, int | float]:
    """Each metric over some calls: the mean, or the sum of integers."""
    found: dict[str, int | float] = {}
    for name in entries[0] if entries else ():
        values = np.array([np.asarray(entry[name]) for entry in entries])
        with np.errstate(invalid="ignore"):  # of infinities: the mean is NaN
            if values.dtype.kind in "iub":
                found[name] = int(values.sum())
            else:
                found[name] = float(values.astype(np.float64).mean())
    return found


def taken(entries: list[dict[str, Any]]) -> str:
    """Metrics as text behind a loss; clears them."""
    known = summary(entries).items()
    entries.clear()
    return "".join(f", {name} {value:.6g}" for name, value in known)
