"""Runs whose shepherds are gone: listed, shown, compared, and served to a browser."""

import json
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from helpers.models.bigram_stablehlo import write_experiment

from pcp.errors import ConfigError
from pcp.runtime.group.file_lock import hold
from pcp.tools.cli import main
from pcp.training.observe import journal
from pcp.training.observe.past_run import COMPLETE, RUNNING, STOPPED, PastRun, runs_in
from pcp.training.observe.web.runs_page import RunsPage
from pcp.training.observe.web.server import WebServer


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and with another of a different learning rate."""
    folder = tmp_path_factory.mktemp("past")
    parent = folder / "runs"
    short = {"outer_loop_steps": 2, "max_epochs": 1, "checkpoint_dir": str(parent)}
    path = write_experiment(folder, **short)
    words = ["train", str(path), "--workers", "1", "--web", "off", "--no-dashboard"]
    assert main([*words, "--run", str(parent / "one")]) == 0
    shutil.copytree(parent / "one", parent / "two")
    other = json.loads((parent / "two" / "experiment.json").read_text())
    other["learning_rate"] = 0.125
    (parent / "two" / "experiment.json").write_text(json.dumps(other))
    return parent


def test_a_run_leaves_its_log_its_workers_and_a_report(runs: Path) -> None:
    past = PastRun.read(runs / "one")
    said = [text for _, text in past.events]
    assert any(text.startswith("round 2/2  loss ") for text in said)
    (worker,) = past.workers
    assert worker["address"].startswith("127.0.0.1:")
    assert (past.phase, past.progress.committed) == (COMPLETE, 2)
    report = (runs / "one" / "report.html").read_text()
    given = report.split('id="data">')[1].split("</script>")[0]
    shown = json.loads(given)
    losses = [each["loss"] for each in shown["records"]]
    assert losses == [each.loss for each in past.rounds]
    assert shown["status"]["phase"] == COMPLETE


def test_runs_are_listed_and_shown(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", str(runs)]) == 0
    title, *rows = capsys.readouterr().out.splitlines()
    assert title.split()[:3] == ["run", "state", "round"]
    assert sorted(row.split()[0] for row in rows) == ["one", "two"]
    assert all("2/2" in row and "127.0.0.1" in row for row in rows)
    assert main(["show", str(runs / "two")]) == 0
    said = capsys.readouterr().out
    assert "state      complete, round 2 of 2\n" in said
    assert "\nlearning_rate " in said


def test_runs_are_compared(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "both.html"
    words = ["compare", str(runs / "one"), str(runs / "two"), "-o", str(page)]
    assert main(words) == 0
    difference = capsys.readouterr().out.split("\n\n")[1].splitlines()
    assert [line.split()[0] for line in difference[:-1]] == ["key", "learning_rate"]
    assert difference[1].split()[-1] == "0.125"
    assert '"name": "two"' in page.read_text()


def test_a_run_is_compared_once(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "latest"
    link.symlink_to(runs / "two")
    assert main(["compare", str(link), str(runs / "one"), str(runs / "two")]) == 0
    table = capsys.readouterr().out.split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in table[1:]] == ["two", "one"]
    assert main(["compare", str(link), str(runs / "two")]) != 0
    assert "two runs or more" in capsys.readouterr().err


def test_the_log_is_printed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Followed, it ends with the run."""
    assert main(["logs", str(runs / "one"), "-f"]) == 0
    text = capsys.readouterr().out
    assert text == (runs / "one" / "shepherd.log").read_text()
    assert main(["logs", str(runs / "one"), "--json", "-n", "1"]) == 0
    last = json.loads(capsys.readouterr().out)
    assert text.endswith(f"{last['text']}\n")
    assert main(["attach", str(runs / "one")]) == 0
    assert capsys.readouterr().out.endswith("complete: 2 of 2 rounds\n")


def test_a_run_with_a_shepherd_goes_on(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "one", tmp_path / "run")
    file = tmp_path / "run" / "ledger.jsonl"
    with open(file, "ab") as taken:
        hold(taken, "")
        going = PastRun.read(tmp_path / "run")
        assert going.phase == RUNNING
        answer = going.answer()
        assert answer["started"] <= going.rounds[0].time + 1 < answer["now"] + 1
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if '"kind":"end"' not in line))
    assert PastRun.read(tmp_path / "run").phase == STOPPED


def test_a_folder_without_runs(tmp_path: Path) -> None:
    assert runs_in(tmp_path) == []
    with pytest.raises(ConfigError, match="no folder of runs"):
        runs_in(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no run is there"):
        PastRun.read(tmp_path)


@pytest.fixture
def served(runs: Path):
    server = WebServer("127.0.0.1", 0, RunsPage(runs).routes())
    yield server
    server.close()


def _get(server: WebServer, path: str) -> str:
    with urllib.request.urlopen(server.url + path, timeout=20) as answer:
        return answer.read().decode()


def test_runs_in_a_browser(served: WebServer) -> None:
    assert "<h1>Runs</h1>" in _get(served, "")
    found = json.loads(_get(served, "api/runs"))["runs"]
    assert sorted(run["name"] for run in found) == ["one", "two"]
    assert all(len(run["records"]) == 2 and run["hosts"] for run in found)
    assert 'id="timeline"' in _get(served, "run/one/")
    assert json.loads(_get(served, "run/two/api/run"))["status"]["phase"] == COMPLETE


@pytest.mark.parametrize("path", ["run/three/", "run/..%2fone/", "run/one/x", "etc"])
def test_only_runs_are_served(served: WebServer, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        _get(served, path)


def test_a_line_of_the_log_may_go_on(tmp_path: Path) -> None:
    log = journal.Journal(2, *(tmp_path / name for name in ("a.log", "a.jsonl", "b")))
    log.log("first\nand more")
    log.log("second")
    log.close()
    said = ["first\nand more", "second"]
    assert [t for _, t in journal.events(tmp_path / "a.log")] == said
    lines = (tmp_path / "a.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == said


def test_the_journal_knows_who_is_absent(tmp_path: Path) -> None:
    """A line when a worker leaves and one when it is back, whatever the heartbeats."""
    file = tmp_path / "workers"
    log = journal.Journal(2, tmp_path / "log", tmp_path / "json", file)
    rows = [{"index": i, "worker": f"w{i}", "address": f"10.0.0.{i}:1"} for i in (0, 1)]
    gone = rows[1] | {"left": "silent for 3.0 s"}
    for _ in range(3):
        log.status({"workers": rows, "absent": []})
    for _ in range(3):
        log.status({"workers": rows[:1], "absent": [gone]})
    assert journal.workers(file) == [rows[0], gone]
    log.status({"workers": rows, "absent": []})
    log.close()
    assert journal.workers(file) == rows
    assert len(file.read_text().splitlines()) == 4


def test_no_text_of_a_run_ends_the_script(tmp_path: Path, runs: Path) -> None:
    shutil.copytree(runs / "one", tmp_path / "run")
    with open(tmp_path / "run" / "shepherd.log", "a") as log:
        log.write("2026-01-01 00:00:00 </script><script>alert(1)</script>\n")
    assert main(["show", str(tmp_path / "run"), "--report"]) == 0
    assert "<script>alert" not in (tmp_path / "run" / "report.html").read_text()


def test_old_complete_runs_are_removed_when_one_says_so(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old", "stopped"):
        shutil.copytree(runs / "one", tmp_path / name)
    file = tmp_path / "stopped" / "ledger.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if '"kind":"end"' not in line))
    words = ["clean", str(tmp_path), "--days", "0"]
    assert main(words) == 0
    assert f"would remove {tmp_path / 'old'} (" in capsys.readouterr().out
    assert (tmp_path / "old").exists()
    assert main([*words, "--yes"]) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["stopped"]
