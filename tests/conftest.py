"""What all tests share."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def kept_for_good() -> Iterator[None]:
    """What a module leaves behind is kept, and looked through no more.

    Oracles keep what they compiled: half a million objects, and each collection of
    garbage stops all threads for a second. Workers that later tests run in threads were
    taken for dead meanwhile.
    """
    yield
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """At the end all is let go of, as without us."""
    gc.unfreeze()
