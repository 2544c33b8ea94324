"""The pages of runs in a real browser, where there is one: they draw what they hold."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers.oracles.round_metrics import record

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
    file = tmp_path / "report.html"
    workers = [
        {"index": i, "address": f"10.0.0.{i}:4411", "target": "cpu", "device": "d"}
        for i in range(2)
    ]
    event = "worker 1 (10.0.0.1:4411) is lost: silent for 3.0 s"
    status = {"run": "r", "phase": "complete", "round": 2, "workers": workers}
    status |= {"wanted": 2, "steps": None}
    data = {"since": 1.0, "after": 2, "rounds": 2, "validations": {"2": 2.5}}
    data |= {"events": [[0.0, event]], "experiment": {}, "status": status}
    file.write_text(page("page.html", data | {"records": [values(1, 3), values(2, 2)]}))
    found = shown(file)
    assert found.count("<canvas") == 6
    assert event in found
    assert found.count("10.0.0.1:4411") == 3 + 4  # table, timeline, event; four bars
