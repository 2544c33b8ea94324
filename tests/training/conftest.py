"""What tests of training share."""

from collections.abc import Iterator

import pytest
from helpers.servers.processes import Processes


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Child processes, which do not survive the test."""
    with Processes() as started:
        yield started
