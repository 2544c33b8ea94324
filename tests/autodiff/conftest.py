"""One interpreter process for all derivative tests."""

from collections.abc import Iterator

import pytest
from helpers.servers.interpreter import Interpreter


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as running:
        yield running
