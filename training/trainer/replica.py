"""Replicas: parameters of a member's own, which differ by design.

Replicas are private state, under `replica.<name>`. A newcomer begins with the replica
of the worker from which it fetched the state, or with the mean in a checkpoint.
"""

from collections.abc import Mapping

import numpy as np

from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import OWN, PARAMETER, PRIVATE, REPLICA, moved


def with_replica(snapshot: Mapping[str, np.ndarray], index: int) -> Arrays:
    """The snapshot, with the first parameters of the member `index`.

    These are its own replica, else the snapshot's parameters, else its owner's replica.
    """
    start = dict(snapshot)
    shared = any(name.startswith(PARAMETER) for name in snapshot)
    for owner in (OWN, index):
        prefix = f"{PRIVATE}{owner}/{REPLICA}"
        if owner == index or not shared:
            found = {k: a for k, a in snapshot.items() if k.startswith(prefix)}
            start |= moved(found, prefix, PARAMETER)
    return start
