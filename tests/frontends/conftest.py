"""One process of each oracle for the tests that run what a frontend exported."""

from collections.abc import Iterator

import pytest
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree


@pytest.fixture(scope="session")
def iree() -> Iterator[Iree]:
    with Iree() as running:
        yield running


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as running:
        yield running
