"""Small worlds that agree along a tree, as large ones do."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from pcp.runtime.collectives import agreement, reduction


@contextmanager
def along_trees() -> Iterator[None]:
    """All worlds count as large: votes and small sums go along trees."""
    with (
        patch.object(agreement, "FEW_MEMBERS", 1),
        patch.object(reduction, "FEW_MEMBERS", 1),
    ):
        yield
