"""The state that a program writes, and its metrics, between the calls of `@grad`.

State is shared (`pcp.training.storage.state_names`): at the end of a round
`@state_sync` makes one of all members' own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pcp.manifest import Manifest
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import PARAMETER, STATE

SYNC = "state_sync"


def counted(manifest: Manifest) -> list[str]:
    """The state that is the sum of what all members counted, by name."""
    if SYNC not in manifest.functions:
        return []
    takes = manifest.function(SYNC).inputs
    return [t.name for t in takes if t.role == "anchor"]


def of_snapshot(snapshot: Mapping[str, np.ndarray], first: Arrays) -> Arrays:
    """The state in a snapshot; weights alone may have it among them, or the seed."""
    found = {}
    for key, value in first.items():
        among_weights = snapshot.get(PARAMETER + key.removeprefix(STATE), value)
        if among_weights.dtype != value.dtype and among_weights.dtype.kind in "fV":
            among_weights = among_weights.astype(value.dtype)
        found[key] = np.array(snapshot.get(key, among_weights))
    return found


def summary(entries: Sequence[Mapping[str, Any]]) -> dict[str, int | float]:
    """Each metric over some calls: the mean, of integers the sum."""
    found: dict[str, int | float] = {}
    for name in entries[0] if entries else ():
        values = np.array([np.asarray(entry[name]) for entry in entries])
        with np.errstate(invalid="ignore"):  # of infinities: NaN is said
            if values.dtype.kind in "iub":
                found[name] = int(values.sum())
            else:
                found[name] = float(values.astype(np.float64).mean())
    return found


def taken(entries: list[dict[str, Any]]) -> str:
    """Metrics for a reader, behind a loss; they are not kept."""
    known = summary(entries).items()
    entries.clear()
    return "".join(f", {name} {value:.6g}" for name, value in known)
