"""Rounds and workers that are slower than the others."""

import pytest
from helpers.models.bigram_numpy import BATCH
from helpers.worlds.communicators import eventually
from helpers.worlds.training_runs import (
    experiment,
    order,
    start_shepherd,
    start_worker,
)

from pcp.training.storage.ledger import check

_FAST, _SLOW = 0.005, 0.4  # seconds an inner step takes at least
_ROUND = 4 * BATCH  # samples of one worker


def _run(folder, pauses, **keys):
    exp = experiment(folder, outer_loop_steps=6, **keys)
    shepherd, watcher, thread = start_shepherd(exp, workers=len(pauses))
    crew = [start_worker(shepherd.port, f"w{i}", p) for i, p in enumerate(pauses)]
    outcome = thread.finish(60)
    for worker in crew:
        worker.finish(20)
    assert outcome.rounds == 6
    report = check(shepherd.folder.ledger)
    return watcher, report


def _left_out(watcher):
    return [line for line in watcher.lines if "is left out" in line]


@pytest.mark.parametrize(
    "keys",
    [
        {"quorum": 2, "grace_seconds": 0.05},
        {"round_deadline_seconds": 0.4},
        pytest.param(
            {"round_deadline_seconds": 0.8, "quorum": 3}, marks=pytest.mark.slow
        ),
    ],
    ids=["quorum", "deadline", "deadline-below-quorum"],
)
def test_a_slow_worker_is_left_out_and_its_samples_are_not_lost(tmp_path, keys):
    watcher, report = _run(tmp_path, [_FAST, _FAST, _SLOW], **keys)
    assert _left_out(watcher)
    assert max(r.workers for r in watcher.rounds) == 2
    # What it gave back the others used: only the last lease is still in the pool.
    assert report.consumed == sum(r.workers for r in watcher.rounds) * _ROUND
    assert report.pending <= 2 * _ROUND


def test_without_a_quorum_a_round_waits_for_all(tmp_path):
    watcher, _ = _run(tmp_path, [_FAST, 0.05])
    assert not _left_out(watcher)
    assert {r.workers for r in watcher.rounds} == {2}


def test_grace_lets_the_others_finish(tmp_path):
    watcher, _ = _run(tmp_path, [_FAST, 0.05], quorum=1, grace_seconds=20.0)
    assert not _left_out(watcher)


def test_slow_workers_get_fewer_steps(tmp_path):
    watcher, _ = _run(tmp_path, [0.02, 0.08], uneven_steps=True, tau=12)
    assert [m.steps for m in watcher.rounds[0].members] == [12, 12]
    last = {m.worker: m for m in watcher.rounds[-1].members}
    fast, slow = sorted(last.values(), key=lambda m: -m.steps)
    assert fast.steps == 12
    assert 1 <= slow.steps <= 6
    # Weighted by what they did: the mean of the losses too.
    loss = (fast.loss * fast.tokens + slow.loss * slow.tokens) / (
        fast.tokens + slow.tokens
    )
    assert watcher.rounds[-1].loss == pytest.approx(loss)


def test_a_worker_that_was_left_out_takes_part_again(tmp_path):
    """It drops the steps it made for nothing, and all agree on the state again."""
    exp = experiment(
        tmp_path, outer_loop_steps=4000, max_epochs=200, quorum=1, grace_seconds=0.2
    )
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    slow = {"pause": 0.3}
    crew = [
        start_worker(shepherd.port, "w0", 0.03),
        start_worker(shepherd.port, "w1", lambda: slow["pause"]),
    ]
    eventually(lambda: _left_out(watcher), 20)
    slow["pause"] = 0.0
    eventually(lambda: watcher.rounds and watcher.rounds[-1].workers == 2, 60)
    order(shepherd, "cancel")
    thread.finish(60)
    for worker in crew:
        worker.finish(20)
    check(shepherd.folder.ledger)
