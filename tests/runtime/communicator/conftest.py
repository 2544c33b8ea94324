"""Worlds of communicators, one for all tests of a file."""

import pytest
from helpers.worlds.communicators import CARRIERS, world


@pytest.fixture(scope="module", params=CARRIERS)
def carrier(request):
    return request.param


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def comms(request, carrier):
    with world(carrier, request.param) as members:
        yield members


@pytest.fixture(scope="module")
def three(carrier):
    with world(carrier, 3) as members:
        yield members
