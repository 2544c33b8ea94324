"""Snapshots and checkpoints: each from the other, and the tensors under a digest."""

from collections.abc import Mapping, Sequence

import numpy as np

from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.safetensors_io import Arrays, mean
from pcp.training.storage.state_names import (
    INNER,
    OUTER,
    OWN,
    PARAMETER,
    PRIVATE,
    REPLICA,
    STATE,
    prefixed,
    shared_part,
    under,
)


def snapshot_of(checkpoint: Checkpoint, indices: Sequence[int] | None = None) -> Arrays:
    """A checkpoint as the snapshot that workers restore from.

    Rank r of the checkpoint is for the worker with index `indices[r]`, or r.
    """
    places = indices or range(len(checkpoint.workers))
    parameters = checkpoint.parameters
    arrays = shared_of(checkpoint)
    arrays |= prefixed(PARAMETER, [*parameters], parameters.values())
    for prefix, group in ((INNER, checkpoint.workers), (PRIVATE, checkpoint.private)):
        for rank, own in zip(places, group, strict=False):
            arrays |= prefixed(f"{prefix}{rank}/", [*own], own.values())
    return arrays


def shared_of(checkpoint: Checkpoint) -> Arrays:
    """The part of a state whose digest a commit records."""
    parameters, outer, state = checkpoint.parameters, checkpoint.outer, checkpoint.state
    if any(name.startswith(REPLICA) for own in checkpoint.private for name in own):
        parameters = {}  # their mean, which no worker holds
    groups = ((PARAMETER, parameters), (OUTER, outer), (STATE, state))
    return {prefix + n: a for prefix, group in groups for n, a in group.items()}


def assembled(round_: int, held: Sequence[tuple[int, Arrays]]) -> Checkpoint:
    """A checkpoint from its members' snapshots, in the order of their ranks."""
    found = Checkpoint(round_, {}, {})
    for _, arrays in held:
        shared = shared_part(arrays)
        found.parameters, found.outer = under(PARAMETER, shared), under(OUTER, shared)
        found.state = under(STATE, shared)
        found.workers.append(under(f"{INNER}0/", arrays))
        found.private.append(under(f"{PRIVATE}{OWN}/", arrays))
    if replicas := [under(REPLICA, own) for own in found.private]:
        found.parameters = found.parameters or mean_of(replicas)
    return found


def mean_of(replicas: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
    """The mean of members' replicas, summed in float64 in their order."""
    names = replicas[0]
    return {name: mean([replica[name] for replica in replicas]) for name in names}
