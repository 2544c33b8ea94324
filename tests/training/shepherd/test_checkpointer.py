"""Checkpoints of a run under way: a disk that is slow, full, or wrong."""

import errno
import os
import threading
import time
from contextlib import closing
from itertools import pairwise

import numpy as np
from helpers.worlds.training_runs import (
    checkpoint_of,
    experiment,
    run,
    start_shepherd,
    start_worker,
)

from pcp.runtime.group import state_transfer
from pcp.training.shepherd import checkpointer
from pcp.training.shepherd.serving import StateServer
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import safetensors_io
from pcp.training.storage.checkpoint import Checkpoint
from pcp.training.storage.ledger import Ledger
from pcp.training.storage.run_folder import RunFolder
from pcp.training.storage.snapshots import shared_of


def test_a_finished_run_whose_last_checkpoint_is_damaged_makes_it_again(tmp_path):
    exp = experiment(tmp_path, heartbeat_limit_seconds=0.6)
    outcome, folder, watcher = run(exp, 1)
    digest = checkpoint_of(outcome).info["digest"]
    newest, before, *_ = checkpoints.folders(folder.path)
    (newest / "outer.safetensors").write_bytes(b"damaged")
    reached = checkpoints.load(before).round
    again, _, watcher = run(exp, 1, folder)
    assert [r.round for r in watcher.rounds] == list(range(reached + 1, 6))
    saved = checkpoint_of(again)
    assert (saved.round, saved.info["digest"]) == (5, digest)


def test_a_disk_that_stands_still_holds_up_no_round(tmp_path, monkeypatch):
    """Ten rounds are made while a checkpoint's first file is being written."""
    moving, write = threading.Event(), checkpoints._write

    def when_it_moves(path, content):
        assert moving.wait(30)
        return write(path, content)

    monkeypatch.setattr(checkpoints, "_write", when_it_moves)
    exp = experiment(tmp_path, outer_loop_steps=20)
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    crew = [start_worker(shepherd.port, f"w{i}") for i in range(2)]
    try:
        watcher.wait_for_round(12)
        assert checkpoints.folders(shepherd.folder.path) == []
    finally:
        moving.set()
    outcome = thread.finish()
    assert [w.finish(10) for w in crew]
    assert any("the disk is slower than the rounds" in line for line in watcher.lines)
    assert any(line.startswith("checkpoint of round 2 in") for line in watcher.lines)
    saved = checkpoint_of(outcome)
    assert (saved.round, saved.info["digest"]) == (
        20,
        safetensors_io.digest(shared_of(saved)),
    )


def test_a_worker_that_freezes_as_it_is_asked_for_its_state_holds_up_no_round(
    tmp_path, monkeypatch
):
    """No round begins before one has handed out its state: silence holds up none."""
    thaws, stream, frozen, patience = (
        threading.Event(),
        state_transfer._stream,
        [],
        set(),
    )

    def frozen_once(*args):
        if patience and not frozen:  # a checkpoint asks, no newcomer
            frozen.append(args)
            thaws.wait(60)
        stream(*args)

    def fetch(*args, **more):
        patience.add(more["silence"])
        return state_transfer.fetch_snapshot(*args, **more)

    monkeypatch.setattr(state_transfer, "_stream", frozen_once)
    monkeypatch.setattr(checkpointer, "fetch_snapshot", fetch)
    exp = experiment(tmp_path, outer_loop_steps=20, heartbeat_limit_seconds=0.6)
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    crew = [start_worker(shepherd.port, f"w{i}") for i in range(2)]
    try:
        watcher.wait_for_round(6)
    finally:
        thaws.set()
    outcome = thread.finish()
    assert [w.finish(10) for w in crew]
    gone = [line for line in watcher.lines if "did not answer in time" in line]
    assert len(gone) == 1
    assert "the state is not proved" in gone[0]
    assert patience == {0.6}
    assert checkpoint_of(outcome).round == 20


def test_a_full_disk_costs_a_checkpoint_and_no_round(tmp_path, monkeypatch):
    full, write = [True], checkpoints._write

    def refuse(path, content):
        if full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write(path, content)

    monkeypatch.setattr(checkpoints, "_write", refuse)
    exp = experiment(tmp_path, outer_loop_steps=20)
    shepherd, watcher, thread = start_shepherd(exp, workers=1)
    worker = start_worker(shepherd.port, "w", 0.005)
    watcher.wait_for_round(8)
    full[0] = False
    outcome = thread.finish()
    assert worker.finish(10)
    refused = [line for line in watcher.lines if "no checkpoint this time" in line]
    assert refused
    assert all("No space left on device" in line for line in refused)
    assert checkpoint_of(outcome).round == 20


def test_the_last_checkpoint_waits_for_room(tmp_path, monkeypatch):
    tries, write = [], checkpoints._write

    def refuse(path, content):
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return write(path, content)

    monkeypatch.setattr(checkpoints, "_write", refuse)
    monkeypatch.setattr("pcp.training.coordinator.checkpointing._RETRY_SECONDS", 0.3)
    exp = experiment(tmp_path, outer_loop_steps=1)
    outcome, _, watcher = run(exp, 1)
    assert all(b >= a + 0.3 for a, b in pairwise(tries[:3]))
    assert sum("no checkpoint this time" in line for line in watcher.lines) == 2
    assert checkpoint_of(outcome).round == 1


def test_a_checkpoint_of_a_round_that_was_undone_is_not_taken_for_the_last(tmp_path):
    """The run went back and made round 1 anew: the folder of that name is the old."""
    table = np.ones(4, np.float32)
    state, other = (Checkpoint(1, {"t": table * x}, {}) for x in (1, 2))
    exp = experiment(tmp_path)
    folder = RunFolder.at(tmp_path / "run", exp)
    with closing(Ledger(folder.ledger)) as ledger:
        digest = safetensors_io.digest(shared_of(state))
        ledger.append("begin", samples_per_epoch=10)
        ledger.append("round", round=1, epoch=1, leases={})
        ledger.append("commit", round=1, epoch=1, digest=digest, consumed={})
        serving = StateServer(None, folder, ledger, exp)
        path = checkpoints.save(folder.path, other)
        found = serving.look(1)
        assert found.path is None
        assert "is not the state the ledger committed" in found.damaged[0]
        assert checkpoints.save(folder.path, state) == path
        assert StateServer(None, folder, ledger, exp).look(1).path == str(path)
