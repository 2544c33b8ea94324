"""What the tests of compiled programs share."""

import pytest
from helpers.models import handwritten_imports

from pcp.runtime.group import coordinator


@pytest.fixture(scope="module")
def two():
    return handwritten_imports.two()


@pytest.fixture(params=["local-task", "local-sync"])
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def unknown_groups_settle_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator without a state waits half a second for a group of before."""
    monkeypatch.setattr(coordinator, "_UNKNOWN_SECONDS", 0.05)
