"""Batches of token ids by hand, for tests that need no dataset."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pcp.manifest import TensorSpec
from pcp.training.data.dataset import Batch, token_inputs


def token_batch(
    ids: np.ndarray, targets: np.ndarray, inputs: Sequence[TensorSpec] | None = None
) -> Batch:
    """These as the two data of a program; without `inputs`, `ids` and `targets`."""
    names = [t.name for t in inputs or token_inputs(*ids.shape)]
    tensors = dict(zip(names, (ids, targets), strict=True))
    return Batch(tensors, np.arange(len(ids)))


def pair(batch: Batch) -> list[Any]:
    """Ids and targets of a batch, whatever the program calls them."""
    return [*batch.tensors.values()]
