"""What the tests of compiled programs share."""

import pytest
from helpers import hand_written


@pytest.fixture(scope="module")
def two():
    return hand_written.two()


@pytest.fixture(params=["local-task", "local-sync"])
def device(request):
    return request.param
