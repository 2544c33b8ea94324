"""One process of the interpreter, and one of IREE, for the harvest."""

from collections.abc import Iterator

import pytest
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    with Interpreter() as running:
        yield running


@pytest.fixture(scope="session")
def iree() -> Iterator[Iree]:
    with Iree() as running:
        yield running
