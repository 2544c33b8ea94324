"""One IREE process for the tests that run what a frontend exported."""

from collections.abc import Iterator

import pytest
from helpers.iree_server import Iree


@pytest.fixture(scope="session")
def iree() -> Iterator[Iree]:
    with Iree() as running:
        yield running
