"""What the tests of compiled programs share."""

import pytest
from helpers.models import handwritten_imports


@pytest.fixture(scope="module")
def two():
    return handwritten_imports.two()


@pytest.fixture(params=["local-task", "local-sync"])
def device(request):
    return request.param
