"""The pages of runs in a real browser, where there is one: they draw what they hold."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers.oracles.round_metrics import record
from helpers.simulation.pure_run import World

from pcp.training.coordinator.events import Lost
from pcp.training.observe.metrics import round_of
from pcp.training.observe.page_files import page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed"),
]


def shown(path: Path) -> str:
    """The document as it stands after its scripts."""
    words = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=4000",
    ]
    command = [str(CHROMIUM), *words, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("<script")[0]


def values(number: int, loss: float) -> dict[str, Any]:
    """A round as the pages hold it."""
    made = record(number, loss)
    kept = vars(made) | {"members": [vars(each) for each in made.members]}
    assert round_of(kept) == made
    return kept


def test_two_curves_lie_over_each_other(tmp_path: Path) -> None:
    file = tmp_path / "runs.html"
    run = {"phase": "complete", "round": 2, "rounds": 2, "loss": 2.0, "validation": 2.5}
    run |= {"tokens": 2000, "seconds": 4.0, "hosts": ["10.0.0.7:4411"]}
    names = {"first": {"learning_rate": "0.1"}, "second": {"learning_rate": "0.2"}}
    runs = [
        run | {"name": n, "experiment": e, "records": [values(1, 3.0), values(2, 2.0)]}
        for n, e in names.items()
    ]
    file.write_text(page("runs.html", {"runs": runs}))
    found = shown(file)
    assert found.count("<canvas") == 2
    for word in (*names, "10.0.0.7:4411", "learning_rate", "2 runs, 0 going on"):
        assert word in found


def test_a_killed_workers_host_is_named(tmp_path: Path) -> None:
    """By the lines of the coordinator itself, of which a member's connection ends."""
    world = World("10.0.0.1", "10.0.0.2")
    world.makes()
    world.step(Lost(world.peers.pop("10.0.0.2"), "it closed the connection"))
    world.makes()
    (event,) = [line for line in world.lines if " left: " in line]
    assert event == "worker 1 at 10.0.0.2:1 left: it closed the connection"
    data = {"since": 1.0, "started": 1.0, "now": 2.0, "after": 2, "rounds": 2}
    data |= {"validations": {"2": 2.5}, "experiment": {}, "events": [[0.0, event]]}
    data |= {"status": world.run.status(), "records": [values(1, 3), values(2, 2)]}
    file = tmp_path / "report.html"
    file.write_text(page("page.html", data))
    found = shown(file)
    assert found.count("<canvas") == 11
    assert f"1 of 2 workers; {event}" in found
    # The alert, the event, the timeline with its four bars, and the table.
    assert found.count("10.0.0.2:1") == 2 + 5 + 1


def test_numbers_are_short_and_counts_are_whole(tmp_path: Path) -> None:
    status = {"run": "r", "phase": "complete", "round": 1, "workers": []}
    data = {"since": 1.0, "after": 1, "rounds": 1, "validations": {}, "events": []}
    data |= {"experiment": {}, "status": status, "records": [values(1, 3.0)]}
    look = (
        "<script>setTimeout(() => { const u = charts.get('count').plot; document.title"
        " = [...[187.6222, 1.5, 2, 1234, 3.5e6, 0.00012345678].map(short), "
        "...u.axes[1]._values].join(' ') }, 500)</script>"
    )
    file = tmp_path / "report.html"
    file.write_text(page("page.html", data) + look)
    title = shown(file).partition("<title>")[2].partition("</title>")[0].split()
    assert title[:6] == ["187.62", "1.5", "2", "1.2k", "3.50M", "0.00012346"]
    assert title[6:] == ["0", "1", "2"]


def test_a_straggler_is_named_and_the_rest_of_the_time_told(tmp_path: Path) -> None:
    """Worker 1 takes three times as long for a step; worker 2 left before the last."""
    file = tmp_path / "report.html"
    workers = [
        {"index": i, "address": f"10.0.0.{i}:4411", "target": "cpu", "device": "d"}
        for i in range(3)
    ]
    records = [values(number, 3.0) for number in range(1, 6)]
    for record_ in records:
        slow = record_["members"][1]
        slow["compute_seconds"] *= 3
        record_["workers"] = 3
        record_["members"].append(record_["members"][0] | {"worker": 2})
    records[-1]["members"].pop()
    records[-1]["workers"] = 2
    status = {"run": "r", "phase": "round", "round": 5, "workers": workers[:2]}
    status["absent"] = [workers[2] | {"left": "silent for 3.0 s"}]
    data = {"since": 1.0, "after": 5, "rounds": 95, "validations": {}, "events": []}
    data |= {"experiment": {}, "status": status | {"wanted": 3, "steps": None}}
    file.write_text(page("page.html", data | {"records": records}))
    found = shown(file)
    assert "worker 1 at 10.0.0.1:4411 takes 3.0 times as long for a step" in found
    alert = "2 of 3 workers; worker 2 at 10.0.0.2:4411 left: silent for 3.0 s"
    assert alert in found
    assert (
        "worker 2"
        not in found.replace(alert, "")
        .partition('id="alerts"')[2]
        .partition("</pre>")[0]
    )
    assert "<b>3 min</b>left" in found


def test_a_plan_is_drawn_in_the_runs_page(tmp_path: Path) -> None:
    """With its own style, which the rest of the page does not take over."""
    program = "<style>p { color: rgb(1, 2, 3) }</style><p>mesh</p><svg><rect/></svg>"
    status = {"run": "r", "phase": "complete", "round": 1, "workers": []}
    data = {"since": 1.0, "after": 1, "rounds": 1, "validations": {}, "events": []}
    data |= {"experiment": {}, "status": status, "records": [values(1, 3.0)]}
    text = page("page.html", data | {"programs": {"cpu-host": program}})
    look = (
        "<script>setTimeout(() => { const s = $('programs').querySelector('div')"
        ".shadowRoot, c = e => getComputedStyle(e).color; document.title = [s"
        ".querySelectorAll('rect').length, c(s.querySelector('p')), c($('phase'))]"
        ".join(' ') }, 500)</script>"
    )
    file = tmp_path / "report.html"
    file.write_text(text + look)
    found = shown(file)
    title = found.partition("<title>")[2].partition("</title>")[0]
    assert title.startswith("1 rgb(1, 2, 3) rgb(")
    assert title.count("rgb(1, 2, 3)") == 1
    assert "<summary>cpu-host</summary>" in found
