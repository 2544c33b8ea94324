"""What a process of tests does not say, and that xdist would have said it."""

from types import SimpleNamespace
from typing import Any

import pytest
from helpers.servers import tester_reports
from xdist import remote

PASSED = {"outcome": "passed", "when": "setup"}
KEPT = [
    ("testreport", {"data": PASSED | {"when": "call"}}),
    ("testreport", {"data": {"outcome": "failed", "when": "teardown"}}),
    ("testreport", {"data": {"outcome": "skipped", "when": "setup"}}),
    ("runtest_protocol_complete", {"item_index": 3}),
]
UNSAID = [
    ("testreport", {"data": PASSED}),
    ("testreport", {"data": PASSED | {"when": "teardown"}}),
    ("logstart", {"nodeid": "a"}),
    ("logfinish", {"nodeid": "a"}),
]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """What xdist's own class says, after it was told to say less."""
    lines: list[tuple[str, Any]] = []
    interactor = object.__new__(remote.WorkerInteractor)
    monkeypatch.setattr(interactor, "log", lambda *_: None, raising=False)
    monkeypatch.setattr(
        interactor, "channel", SimpleNamespace(send=lines.append), raising=False
    )
    plugins = SimpleNamespace(get_plugins=lambda: [object(), interactor])
    tester_reports.say_less(SimpleNamespace(pluginmanager=plugins))  # pyright: ignore[reportArgumentType]
    for name, content in KEPT + UNSAID:
        interactor.sendevent(name, **content)
    return lines


def test_results_are_said_and_no_more(said: list[tuple[str, Any]]) -> None:
    assert said == KEPT
