"""What all tests share."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def kept_for_good() -> None:
    """What the modules before left behind is kept, and looked through no more.

    Oracles keep what they compiled: half a million objects, and each collection of
    garbage stops all threads for a second. Workers that later tests run in threads were
    taken for dead meanwhile.
    """
    gc.collect()  # the last test of the module before has let go of all by now
    gc.freeze()


def pytest_unconfigure() -> None:
    """At the end all is let go of, as without us."""
    gc.unfreeze()
