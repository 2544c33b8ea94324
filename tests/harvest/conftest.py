"""One interpreter process for the harvest."""

from collections.abc import Iterator

import pytest
from helpers.interpreter import Interpreter


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as running:
        yield running
