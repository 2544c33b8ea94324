"""An operator's orders to a run: what they do, and that the ledger has them."""

import json
import stat
import time

import pytest
from helpers.worlds.communicators import eventually
from helpers.worlds.training_runs import (
    checkpoint_of,
    experiment,
    order,
    start_shepherd,
    start_worker,
)

from pcp.errors import ConfigError
from pcp.training.observe.orders import give
from pcp.training.storage.control_file import CONTROL_FILE
from pcp.training.storage.ledger import Ledger, check, read

_PAUSE = 0.01  # seconds an inner step takes at least


def _start(folder, workers=2, rounds=12, **keys):
    exp = experiment(folder, outer_loop_steps=rounds, **keys)
    shepherd, watcher, thread = start_shepherd(exp, workers=workers)
    crew = [start_worker(shepherd.port, f"w{i}", _PAUSE) for i in range(workers)]
    watcher.wait_for_round(1)
    return shepherd, watcher, thread, crew


def test_no_round_begins_while_a_run_is_paused(tmp_path):
    shepherd, _watcher, thread, crew = _start(tmp_path)
    order(shepherd, "pause")
    eventually(lambda: shepherd.status()["phase"] == "paused", 10)
    reached = shepherd.committed
    time.sleep(0.3)
    assert shepherd.committed == reached < 12
    order(shepherd, "resume")
    assert thread.finish().rounds == 12
    for worker in crew:
        worker.finish(10)
    check(shepherd.folder.ledger)


def test_steps_change_from_the_next_round_on(tmp_path):
    shepherd, watcher, thread, crew = _start(tmp_path)
    assert "7 inner steps" in order(shepherd, "steps", steps=7)
    thread.finish()
    for worker in crew:
        worker.finish(10)
    steps = [m.steps for r in watcher.rounds for m in r.members]
    changed = steps.index(7)
    assert set(steps[:changed]) == {4}
    assert set(steps[changed:]) == {7}
    check(shepherd.folder.ledger)


def test_a_drained_worker_leaves_and_the_others_go_on(tmp_path):
    shepherd, watcher, thread, crew = _start(tmp_path, validate_every=1)
    leaving = next(m for m in shepherd.roster if m.index == 1)
    where = f"worker 1 at {leaving.address} leaves"
    assert where in order(shepherd, "drain", worker=1)
    assert crew[int(leaving.name[1])].finish(10) == "drained by the operator"
    with pytest.raises(ConfigError, match=r"worker 0 at \S+ is the last one"):
        order(shepherd, "drain", worker=0)
    with pytest.raises(ConfigError, match="there is no worker 5; there is 0"):
        order(shepherd, "drain", worker=5)
    assert thread.finish().rounds == 12
    assert watcher.rounds[-1].workers == 1
    assert not any("lacks a share" in line for line in watcher.lines)
    report = check(shepherd.folder.ledger)
    assert report.pending == 0


def test_a_cancelled_run_is_saved_and_can_go_on(tmp_path):
    shepherd, _watcher, thread, crew = _start(tmp_path)
    order(shepherd, "cancel")
    outcome = thread.finish()
    assert outcome.cancelled
    assert outcome.rounds < 12
    assert checkpoint_of(outcome).round == outcome.rounds
    for worker in crew:
        assert worker.finish(10) == "the run is cancelled by the operator"
    exp = shepherd.experiment
    shepherd, _, thread = start_shepherd(exp, shepherd.folder, workers=2)
    crew = [start_worker(shepherd.port, f"w{i}") for i in range(2)]
    assert thread.finish().rounds == 12
    for worker in crew:
        worker.finish(10)
    assert check(shepherd.folder.ledger).rounds == 12


def test_an_interrupted_run_that_has_not_begun_just_ends(tmp_path):
    shepherd, _watcher, thread = start_shepherd(experiment(tmp_path), workers=1)
    shepherd.interrupt(2)
    with pytest.raises(KeyboardInterrupt):
        thread.finish(10)
    assert not shepherd.folder.begun


def test_a_pause_outlives_the_shepherd(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append("begin", samples_per_epoch=10)
    ledger.append("order", action="pause")
    ledger.append("order", action="steps", steps=9)
    ledger.close()
    again = Ledger(tmp_path / "ledger.jsonl")
    assert (again.progress.paused, again.progress.steps) == (True, 9)
    again.append("order", action="resume")
    assert not again.progress.paused
    again.close()


def test_only_who_can_read_the_folder_gives_orders(tmp_path):
    shepherd, _watcher, thread, crew = _start(tmp_path)
    path = shepherd.folder.path / CONTROL_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    control = json.loads(path.read_text())
    other = tmp_path / "other"
    other.mkdir()
    (other / CONTROL_FILE).write_text(json.dumps(control | {"key": "0" * 64}))
    with pytest.raises(ConfigError, match="the key is not this run's"):
        give(other, {"action": "cancel"}, None, 5.0)
    with pytest.raises(ConfigError, match="at least 1"):
        order(shepherd, "steps", steps=0)
    assert thread.finish().rounds == 12
    for worker in crew:
        worker.finish(10)
    assert not [r for r in read(shepherd.folder.ledger)[0] if r["kind"] == "order"]


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"control\.json: No such file"):
        give(tmp_path, {"action": "pause"}, None, 5.0)
