"""Real processes that die: at each step of a round, the run goes on."""

import json
import signal
import time

import numpy as np
import pytest
from helpers.present import present
from helpers.servers.processes import free_port
from helpers.worlds.communicators import eventually
from helpers.worlds.training_runs import (
    Background,
    experiment,
    order,
    start_shepherd,
    start_worker,
)

from pcp.training.observe import metrics
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage.ledger import check, read

WORKER, SHEPHERD = "helpers.models.bigram_numpy", "helpers.worlds.shepherd_process"


def _finish(shepherd, watcher, thread, crew, rounds=None):
    """Wait until the run has made its rounds; None: it is cancelled now."""
    if rounds is None:
        order(shepherd, "cancel")
    outcome = thread.finish()
    how = "complete" if rounds else "cancelled by the operator"
    for process in crew:
        process.wait_for(f"ended: the run is {how}")
        assert process.wait() == 0
    made = outcome.rounds if rounds is None else rounds
    assert outcome.rounds == made
    assert [r.round for r in watcher.rounds] == list(range(1, made + 1))
    check(shepherd.folder.ledger)


SLOW = pytest.mark.slow


@pytest.mark.slow  # test_streaming_faults.py kills one of three, too
@pytest.mark.parametrize("delay", [0.03, 0.0, 0.07, 0.11])
def test_a_killed_worker_costs_its_share_and_nothing_else(tmp_path, processes, delay):
    """Inner steps take 0.12 s: the delays hit them, and the exchange after them."""
    exp = experiment(tmp_path, outer_loop_steps=12)
    shepherd, watcher, thread = start_shepherd(exp, workers=3)
    crew = [
        processes.start(WORKER, name, shepherd.port, 0.03) for name in ("a", "b", "c")
    ]
    watcher.wait_for_round(3)
    time.sleep(delay)
    crew.pop(0).signal(signal.SIGKILL)
    after = watcher.rounds[-1].round + 1
    watcher.wait_for_round(after + 1)
    _finish(shepherd, watcher, thread, crew, 12)
    sizes = [r.workers for r in watcher.rounds]
    assert sizes[:3] == [3, 3, 3]
    assert sizes[-1] == 2
    kinds = [record["kind"] for record in read(shepherd.folder.ledger)[0]]
    assert kinds.count("returned") <= 1


@pytest.mark.slow  # a frozen one does, too
def test_a_worker_that_comes_back_takes_part_in_the_next_round(tmp_path, processes):
    exp = experiment(tmp_path, outer_loop_steps=4000, max_epochs=200)
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    crew = [processes.start(WORKER, name, shepherd.port, 0.03) for name in ("a", "b")]
    watcher.wait_for_round(3)
    crew.pop(0).signal(signal.SIGKILL)
    watcher.wait_for_round(6)
    back = processes.start(WORKER, "a2", shepherd.port, 0.03)
    back.wait_for("joined with the state of round")
    number = watcher.rounds[-1].round
    watcher.wait_for_round(number + 2)
    _finish(shepherd, watcher, thread, [*crew, back])
    sizes = {r.round: r.workers for r in watcher.rounds}
    assert sizes[number] == 1
    assert sizes[number + 2] == 2


def test_a_frozen_worker_is_dropped_and_may_return(tmp_path, processes):
    exp = experiment(
        tmp_path, outer_loop_steps=4000, max_epochs=200, heartbeat_limit_seconds=1.0
    )
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    crew = [processes.start(WORKER, name, shepherd.port, 0.03) for name in ("a", "b")]
    watcher.wait_for_round(3)
    crew[0].signal(signal.SIGSTOP)
    try:
        watcher.wait_for_round(watcher.rounds[-1].round + 3)
        assert any("silent for" in line for line in watcher.lines)
        assert watcher.rounds[-1].workers == 1
    finally:
        crew[0].signal(signal.SIGCONT)
    crew[0].wait_for("lost the shepherd")
    eventually(lambda: watcher.rounds[-1].workers == 2, 30)
    _finish(shepherd, watcher, thread, crew)


def test_a_shepherd_that_stood_still_takes_nobody_for_dead(tmp_path, monkeypatch):
    """It wakes before its readers do: all heartbeats are still in the sockets."""
    exp = experiment(tmp_path, outer_loop_steps=12, heartbeat_limit_seconds=2.0)
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    listen, stands = shepherd.hub.next, [2, 6]

    def stand_still(timeout):
        if stands and watcher.rounds and watcher.rounds[-1].round >= stands[0]:
            stands.pop(0)
            time.sleep(2.6)
            return None
        return listen(timeout)

    monkeypatch.setattr(shepherd.hub, "next", stand_still)
    crew = [start_worker(shepherd.port, f"w{i}", 0.01) for i in range(2)]
    thread.finish()
    assert [worker.finish(10) for worker in crew] == ["the run is complete"] * 2
    assert not stands
    assert {record.workers for record in watcher.rounds} == {2}
    assert not any("left" in line for line in watcher.lines)


@pytest.mark.slow
def test_a_shepherd_that_is_stopped_and_goes_on_drops_nobody(tmp_path, processes):
    """What the test above does to its clock, by SIGSTOP."""
    keys = {"outer_loop_steps": 400, "heartbeat_limit_seconds": 1.0}
    port = free_port()
    shepherd = processes.start(SHEPHERD, tmp_path, port, 2, json.dumps(keys))
    for name in ("a", "b"):
        processes.start(WORKER, name, port, 0.03)
    shepherd.wait_for("round 3")
    for _ in range(6):
        shepherd.signal(signal.SIGSTOP)
        time.sleep(2.5)
        shepherd.signal(signal.SIGCONT)
        time.sleep(2)
    assert shepherd.popen.poll() is None
    assert "left" not in shepherd.text


@pytest.mark.slow  # one dies above
def test_all_workers_may_die(tmp_path, processes):
    exp = experiment(
        tmp_path, outer_loop_steps=10, checkpoint_every=3, heartbeat_limit_seconds=1.0
    )
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    shepherd.state.grace = 0.3  # nobody will bring the state
    crew = [processes.start(WORKER, name, shepherd.port, 0.03) for name in ("a", "b")]
    watcher.wait_for_round(5)
    for process in crew:
        process.signal(signal.SIGKILL)
    crew = [processes.start(WORKER, name, shepherd.port, 0.03) for name in ("c", "d")]
    outcome = thread.finish()
    assert outcome.rounds == 10
    assert any("back to 3" in line for line in watcher.lines)
    rounds, _ = _metrics_of(watcher)
    assert rounds == list(range(1, 11))
    check(shepherd.folder.ledger)


def _metrics_of(watcher):
    numbers: list[int] = []
    for record in watcher.rounds:
        numbers = [n for n in numbers if n < record.round] + [record.round]
    return numbers, watcher.rounds


@SLOW  # a quick one computes the same, below
@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_a_killed_shepherd_loses_nothing(tmp_path, processes, delay):
    keys = json.dumps({"outer_loop_steps": 16})
    port = free_port()
    crew = [processes.start(WORKER, name, port, 0.03) for name in ("a", "b")]
    for number in (3, 7):
        shepherd = processes.start(SHEPHERD, tmp_path, port, 2, keys)
        shepherd.wait_for(f"round {number}/16")
        time.sleep(delay)
        shepherd.signal(signal.SIGKILL)
        shepherd.wait()
    shepherd = processes.start(SHEPHERD, tmp_path, port, 2, keys)
    assert shepherd.wait(60) == 0, shepherd.text
    shepherd.wait_for("outcome 16")
    for process in crew:
        process.wait_for("ended: the run is complete")
    report = check(tmp_path / "run" / "ledger.jsonl")
    assert report.consumed == 16 * 2 * 16
    records, _ = read(tmp_path / "run" / "ledger.jsonl")
    kinds = [record["kind"] for record in records]
    assert "returned" not in kinds  # the workers kept their leases
    assert "rewind" not in kinds
    rounds, _ = metrics.read(tmp_path / "run" / "metrics.jsonl")
    assert rounds[-1].loss < rounds[0].loss


def test_a_run_with_a_killed_shepherd_computes_the_same(tmp_path, processes):
    """With one worker nothing depends on timing: the results are equal bits."""
    keys = {"outer_loop_steps": 8}
    folders = [tmp_path / "killed", tmp_path / "whole"]
    for folder in folders:
        folder.mkdir()
        port = free_port()
        worker = processes.start(WORKER, "a", port, 0.03)
        arguments = (folder, port, 1, json.dumps(keys))
        shepherd = processes.start(SHEPHERD, *arguments)
        if folder.name == "killed":
            shepherd.wait_for("round 4/8")
            shepherd.signal(signal.SIGKILL)
            shepherd.wait()
            shepherd = processes.start(SHEPHERD, *arguments)
        assert shepherd.wait(60) == 0, shepherd.text
        worker.wait_for("ended")
    first, second = (present(checkpoints.newest(f / "run")[0]) for f in folders)
    assert first.info["digest"] == second.info["digest"]
    for name, array in first.workers[0].items():
        np.testing.assert_array_equal(array, second.workers[0][name])


@pytest.mark.slow  # each of them dies in others
def test_shepherd_and_workers_may_all_die(tmp_path, processes):
    keys = json.dumps(
        {
            "outer_loop_steps": 9,
            "checkpoint_every": 2,
            "heartbeat_limit_seconds": 1.5,
        }
    )
    port = free_port()
    crew = [processes.start(WORKER, name, port, 0.03) for name in ("a", "b")]
    shepherd = processes.start(SHEPHERD, tmp_path, port, 2, keys)
    shepherd.wait_for("round 5/9")
    for process in [shepherd, *crew]:
        process.signal(signal.SIGKILL)
    shepherd.wait()
    for name in ("c", "d"):
        processes.start(WORKER, name, port, 0.03)
    shepherd = processes.start(SHEPHERD, tmp_path, port, 2, keys)
    assert shepherd.wait(60) == 0, shepherd.text
    shepherd.wait_for("outcome 9")
    report = check(tmp_path / "run" / "ledger.jsonl")
    assert report.consumed == 9 * 2 * 16
    rounds, _ = metrics.read(tmp_path / "run" / "metrics.jsonl")
    assert [r.round for r in rounds] == list(range(1, 10))


@pytest.mark.slow
def test_a_run_survives_a_storm(tmp_path, processes):
    """Workers and shepherd are killed at random for a while; the ledger adds up."""
    rng = np.random.default_rng(5)
    keys = json.dumps({"outer_loop_steps": 120, "max_epochs": 100})
    port = free_port()
    crew = {i: processes.start(WORKER, f"w{i}", port, 0.02) for i in range(3)}
    shepherd = processes.start(SHEPHERD, tmp_path, port, 2, keys)
    for number in range(3, 40):
        time.sleep(float(rng.uniform(0.1, 0.6)))
        if rng.integers(4) == 0:
            shepherd.signal(signal.SIGKILL)
            shepherd.wait()
            shepherd = processes.start(SHEPHERD, tmp_path, port, 2, keys)
        else:
            slot = int(rng.integers(3))
            crew[slot].signal(signal.SIGKILL)
            crew[slot] = processes.start(WORKER, f"w{number}", port, 0.02)
    assert shepherd.wait(120) == 0, shepherd.text
    check(tmp_path / "run" / "ledger.jsonl")


def test_background_raises_what_its_work_raised():
    def work():
        raise ValueError("as it should")

    with pytest.raises(ValueError, match="as it should"):
        Background(work).finish()
