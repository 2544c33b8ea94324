"""The common part of formats that list their samples when their files are opened."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pcp.training.data.digest import TreeDigest


class FileDataset:
    """A dataset of files with a tree of digests."""

    tree: TreeDigest

    @property
    def digest(self) -> str:
        """The digest of all bytes from which samples may come."""
        return self.tree.root


class ListedDataset(FileDataset):
    """A dataset of files with a list of its samples."""

    _samples: Sequence[Any]

    def __len__(self) -> int:
        return len(self._samples)


def largest_of(arrays: Iterable[np.ndarray]) -> int | None:
    """The largest of integers; None where there are none, or numbers of other types."""
    found = None
    for array in arrays:
        if array.dtype.kind not in "iu":
            return None
        if array.size:
            top = int(array.max())
            found = top if found is None else max(found, top)
    return found
