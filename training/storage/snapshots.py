"""Snapshots of checkpoints: the tensors for workers, and those under a digest."""

from collections.abc import Sequence

from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.safetensors_io import Arrays
from pcp.training.storage.state_names import (
    INNER,
    OUTER,
    PARAMETER,
    PRIVATE,
    REPLICA,
    STATE,
    prefixed,
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
