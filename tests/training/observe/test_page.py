"""What an operator reads on a run's page, drawn by its script in Node."""

from pathlib import Path
from typing import Any

import pytest
from helpers.oracles.page_in_node import NODE, drawn
from helpers.oracles.round_metrics import record
from helpers.simulation.pure_run import World

from pcp.strict_json import dumps
from pcp.training.coordinator.events import Lost
from pcp.training.observe.web.live_page import WebPage

pytestmark = pytest.mark.skipif(NODE is None, reason="runs the page's script in Node")


def shown(
    status: dict[str, Any], folder: Path, rounds: int = 3, **times: float
) -> dict[str, Any]:
    """The page of a run with this status, after so many rounds of 2 s; `times` are
    other values for `started` and `now` than the clock's, the rounds end at 0.0."""
    page = WebPage("127.0.0.1", 0, 10)
    for number in range(1, rounds + 1):
        page.round(record(number))
    page.status(status)
    answer = dumps(page.answer(0, 0.0) | times)
    page.close()
    return drawn(answer, folder)


def test_a_lost_worker_is_named_by_its_address_until_it_is_back(tmp_path: Path) -> None:
    """However long ago it left, by what the coordinator itself reports."""
    world = World("a", "b", "c")
    world.makes()
    assert shown(world.run.status(), tmp_path)["bad"].strip() == ""
    peer = world.peers.pop("b")
    world.step(Lost(peer, "it closed the connection"))
    for _ in range(3):
        world.makes()
    found = shown(world.run.status(), tmp_path)
    assert found["bad"].strip() == (
        "2 of 3 workers; worker 1 at b:1 left: it closed the connection"
    )
    assert "left: it closed the connection" in found["workers"]
    world.peers["b"] = peer
    world.connect(peer)
    assert shown(world.run.status(), tmp_path)["bad"].strip() == ""


def test_nobody_is_missed_before_the_first_round(tmp_path: Path) -> None:
    status = {"phase": "gathering", "round": 0, "wanted": 3, "workers": []}
    assert shown(status | {"absent": []}, tmp_path, rounds=0)["bad"].strip() == ""
    assert shown(status | {"absent": []}, tmp_path)["bad"].strip() == "0 of 3 workers"


@pytest.mark.parametrize(
    ("phase", "started", "now", "alert"),
    [
        ("round", -9.0, 9.9, ""),
        ("round", -9.0, 31.0, "no round for 31 s; one usually takes 2.0 s"),
        ("gathering", -9.0, 31.0, "no round for 31 s; one usually takes 2.0 s"),
        ("running", -9.0, 31.0, "no round for 31 s; one usually takes 2.0 s"),
        ("paused", -9.0, 31.0, ""),
        ("complete", -9.0, 31.0, ""),
        ("stopped", -9.0, 31.0, ""),
        ("gathering", 29.0, 31.0, ""),  # this shepherd started two seconds ago
    ],
)
def test_a_run_that_stands_still_says_for_how_long(
    phase: str, started: float, now: float, alert: str, tmp_path: Path
) -> None:
    status = {"phase": phase, "round": 3, "wanted": 0, "workers": [], "absent": []}
    found = shown(status, tmp_path, started=started, now=now)
    assert found["bad"].strip() == alert
