"""What tests of passes share."""

import pytest
from helpers.servers.iree_server import Iree
from helpers.servers.isolated import elsewhere

__all__ = ["elsewhere"]


@pytest.fixture(
    scope="module", params=["cpu", pytest.param("cpu:host", marks=pytest.mark.slow)]
)
def each_cpu(request: pytest.FixtureRequest, iree: Iree) -> Iree:
    """IREE for any processor, and for this one, which has other instructions."""
    return iree.on(request.param)
