"""Whole runs in one process: shepherd and workers in threads, sockets between."""

import dataclasses
import re
from datetime import datetime
from functools import partial

import numpy as np
import pytest
from helpers.models.bigram_numpy import BigramTrainer, bundle
from helpers.present import present
from helpers.worlds.communicators import eventually
from helpers.worlds.training_runs import (
    TEXT,
    Background,
    checkpoint_of,
    experiment,
    order,
    run,
    start_shepherd,
    start_worker,
)

from pcp.errors import ConfigError, ProtocolError, StateMismatch
from pcp.runtime import Communicator
from pcp.training.data.corpus import Corpus
from pcp.training.data.formats.token_files import TokenFile
from pcp.training.data.tokens import sampled_digest
from pcp.training.observe import metrics
from pcp.training.observe.metrics import MetricsFile
from pcp.training.storage import checkpoint as checkpoints
from pcp.training.storage import safetensors_io
from pcp.training.storage.ledger import Ledger, check, read
from pcp.training.storage.round_record import Round
from pcp.training.storage.run_folder import RunFolder
from pcp.training.storage.snapshots import shared_of
from pcp.training.trainer.step_loop import loss_value


def _by_hand(exp, workers, rounds):
    """The same run in a loop: DiLoCo over `workers` trainers, in order."""
    corpus = Corpus(exp, BigramTrainer.inputs)
    trainers = [BigramTrainer() for _ in range(workers)]
    comms = Communicator.in_process(workers)
    for trainer in trainers:
        trainer.fresh(exp.seed)
    share = exp.tau * corpus.batch
    at, losses = 0, []
    for _ in range(rounds):
        mine = []
        for trainer in trainers:
            trainer.begin()
            for step in range(exp.tau):
                first = at + step * corpus.batch
                batch = corpus.read(np.arange(first, first + corpus.batch))
                mine += trainer.step([batch])
            at += share
        losses.append(loss_value(mine))
        threads = [
            Background(partial(t.outer, share * BigramTrainer.block, c))
            for t, c in zip(trainers, comms, strict=True)
        ]
        for trainer, thread in zip(trainers, threads, strict=True):
            trainer.adopt(thread.finish())
    for comm in comms:
        comm.close()
    return trainers[0].shared, losses


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_run_is_diloco(tmp_path, workers):
    exp = experiment(tmp_path)
    outcome, folder, watcher = run(exp, workers)
    expected, losses = _by_hand(exp, workers, 5)
    saved = checkpoint_of(outcome)
    # Which worker is rank 0 is decided by who connects first: the sum's order.
    for name, array in shared_of(saved).items():
        np.testing.assert_allclose(array, expected[name], rtol=0, atol=1e-6)
    assert [r.loss for r in watcher.rounds] == pytest.approx(losses, rel=1e-5)
    assert outcome.rounds == 5
    assert len(saved.workers) == workers
    assert saved.info["digest"] == safetensors_io.digest(shared_of(saved))
    report = check(folder.ledger)
    assert report.consumed == 5 * workers * 4 * 4
    assert report.pending == 0


def test_a_quorum_that_is_never_reached_is_said(tmp_path):
    for quorum, told in ((5, True), (2, False)):
        exp = experiment(tmp_path, quorum=quorum, outer_loop_steps=1)
        _, _, watcher = run(exp, 2)
        said = "\n".join(watcher.lines)
        assert ("quorum 5 is more than the 2 that the run" in said) == told


def test_the_validation_loss_covers_every_held_out_batch_once(tmp_path):
    exp = experiment(tmp_path, outer_loop_steps=2, validate_every=1)
    outcome, _, watcher = run(exp, 3)
    corpus = Corpus(exp, BigramTrainer.inputs)
    trainer = BigramTrainer()
    trainer.adopt(shared_of(checkpoint_of(outcome)))
    losses = [
        trainer.evaluate(corpus.validation(b)) for b in range(corpus.validation_batches)
    ]
    assert outcome.validation_loss == pytest.approx(np.mean(losses), rel=1e-6)
    assert [v[0] for v in watcher.validations] == [1, 2]
    assert watcher.validations[-1][2] == corpus.validation_batches


def test_accumulated_batches_count_as_one_step(tmp_path):
    exp = experiment(tmp_path, effective_batch_size=12, outer_loop_steps=2, tau=2)
    _, folder, watcher = run(exp)
    assert [r.tokens for r in watcher.rounds] == [2 * 2 * 12 * 8] * 2
    assert check(folder.ledger).consumed == 2 * 2 * 2 * 12


def test_the_run_ends_when_the_data_is_used_up(tmp_path):
    exp = experiment(tmp_path, max_epochs=1, outer_loop_steps=1000, tau=40)
    outcome, folder, watcher = run(exp)
    report = check(folder.ledger)
    assert outcome.rounds < 1000
    said = f"the data is used up after round {outcome.rounds} of 1000: max_epochs is 1"
    assert said in watcher.lines
    assert report.epochs == (report.samples_per_epoch,)


def test_a_finished_run_ends_at_once_when_resumed(tmp_path):
    exp = experiment(tmp_path)
    outcome, folder, _ = run(exp)
    again, _, watcher = run(exp, folder=folder)
    assert again.rounds == outcome.rounds
    assert watcher.rounds == []
    assert not any("used up" in line for line in watcher.lines)


def assert_same_state(one, other) -> None:
    """Both runs saved the same, but for rounding."""
    first, second = (checkpoint_of(o) for o in (one, other))
    for name, array in shared_of(first).items():
        np.testing.assert_allclose(array, shared_of(second)[name], atol=1e-5)


def test_more_rounds_continue_where_the_run_ended(tmp_path):
    exp = experiment(tmp_path)
    _, folder, _ = run(exp)
    longer = exp.model_copy(update={"outer_loop_steps": 8})
    outcome, _, watcher = run(longer, folder=folder)
    assert [r.round for r in watcher.rounds] == [6, 7, 8]
    assert outcome.rounds == 8
    whole, _, _ = run(exp.model_copy(update={"outer_loop_steps": 8}))
    assert_same_state(outcome, whole)


def test_a_lost_tail_of_rounds_is_rewound_and_done_again(tmp_path, monkeypatch):
    """Everything died; the newest checkpoint is older than the ledger.

    It is older than what is in memory too: the shepherd reads the ledger's file.
    """
    monkeypatch.setattr("pcp.training.storage.ledger.KEPT_ROUNDS", 1)
    recalled, whole_history = [], Ledger.whole_history
    monkeypatch.setattr(
        Ledger, "whole_history", lambda self: recalled.append(1) or whole_history(self)
    )
    exp = experiment(tmp_path, checkpoint_every=2, heartbeat_limit_seconds=1.0)
    _, folder, _ = run(exp)
    newest, before, *_ = checkpoints.folders(folder.path)
    (newest / "parameters.safetensors").write_bytes(b"damaged")
    reached = checkpoints.load(before).round  # 4, unless the disk was slow
    longer = exp.model_copy(update={"outer_loop_steps": 7})
    outcome, _, watcher = run(longer, folder=folder)
    assert any(f"back to {reached}" in line for line in watcher.lines), watcher.lines
    assert any("trying the checkpoint before" in line for line in watcher.lines)
    assert recalled
    assert [r.round for r in watcher.rounds] == list(range(reached + 1, 8))
    assert check(folder.ledger).consumed == 7 * 2 * 16
    whole, _, _ = run(longer.model_copy(update={"checkpoint_every": 10}))
    assert_same_state(outcome, whole)


def test_a_newcomer_gets_the_current_state_and_joins_the_next_round(tmp_path):
    exp = experiment(tmp_path, outer_loop_steps=16)
    shepherd, watcher, thread = start_shepherd(exp, workers=1)
    said = []
    crew = [start_worker(shepherd.port, "first", 0.02)]
    watcher.wait_for_round(3)
    crew.append(start_worker(shepherd.port, "second", 0.02, said.append))
    eventually(lambda: any("joined" in line for line in said), 10)
    before = watcher.rounds[-1].round
    thread.finish()
    assert [w.finish(10) for w in crew]
    number = int(said[0].split("round ")[1].split()[0])
    assert number >= 3
    sizes = {r.round: r.workers for r in watcher.rounds}
    assert sizes[before + 2] == 2


class Rounding(BigramTrainer):
    """Rounds the state that it prepares otherwise than its peers, as other hardware."""

    def outer(self, tokens, communicator):
        new = super().outer(tokens, communicator)
        table = new["parameter/table"]
        new["parameter/table"] = np.nextafter(table, np.inf, dtype=np.float32)
        return new


class Broken(BigramTrainer):
    """Prepares another state than its peers, as faulty memory would."""

    def outer(self, tokens, communicator):
        new = super().outer(tokens, communicator)
        new["parameter/table"] = new["parameter/table"] + np.float32(1e-3)
        return new


def test_members_that_computed_different_bits_take_those_of_rank_0(tmp_path):
    exp = experiment(tmp_path, outer_loop_steps=2)
    shepherd, _, thread = start_shepherd(exp, workers=2)
    even = start_worker(shepherd.port, "even")
    crew = [even, start_worker(shepherd.port, "odd", trainer=Rounding)]
    assert thread.finish().rounds == 2
    assert [w.finish(10) for w in crew]


def test_two_members_of_which_one_is_wrong_commit_nothing(tmp_path):
    """Nobody can say which: the run waits for an operator, and holds what it has."""
    exp = experiment(tmp_path, outer_loop_steps=2)
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    even = start_worker(shepherd.port, "even")
    crew = [even, start_worker(shepherd.port, "odd", trainer=Broken)]
    paused = "prepare different states, time after time"
    eventually(lambda: any(paused in line for line in watcher.lines), 30)
    assert shepherd.committed == 0
    order(shepherd, "cancel")
    assert thread.finish().cancelled
    assert [w.finish(10) for w in crew]


def test_a_program_that_does_not_compile_ends_the_run(tmp_path):
    def compile_for(target):
        raise ConfigError("no such model")

    shepherd, _, thread = start_shepherd(experiment(tmp_path), compile_for=compile_for)
    start_worker(shepherd.port, "w")
    with pytest.raises(ConfigError, match="no such model"):
        thread.finish()


def test_a_target_that_does_not_compile_costs_only_that_worker(tmp_path):
    def compile_for(target):
        if target != "cpu":
            raise ConfigError(f"no compiler for {target}")
        return bundle()

    exp = experiment(tmp_path, outer_loop_steps=10)
    shepherd, watcher, thread = start_shepherd(exp, compile_for=compile_for, workers=1)
    good = start_worker(shepherd.port, "good", 0.02)
    watcher.wait_for_round(1)
    bad = start_worker(shepherd.port, "bad", target="sm_1")
    with pytest.raises(ProtocolError, match="no compiler for sm_1"):
        bad.finish()
    assert thread.finish().rounds == 10
    assert good.finish(10)


def test_other_data_on_a_worker_is_refused(tmp_path):
    exp = experiment(tmp_path, outer_loop_steps=3)
    shepherd, _, thread = start_shepherd(exp, workers=1)
    other = tmp_path / "other"
    other.write_bytes(b"something else entirely " * 300)
    worker = start_worker(shepherd.port, "w", data_path=str(other))
    said = "is not the data the shepherd trains on: they differ in the size; copy it"
    with pytest.raises(StateMismatch, match=said):
        worker.finish()
    one_byte = bytearray(TEXT)
    one_byte[7] ^= 1
    other.write_bytes(one_byte)
    worker = start_worker(shepherd.port, "v", data_path=str(other))
    with pytest.raises(StateMismatch, match=f"differ in bytes 0 to {len(TEXT) - 1};"):
        worker.finish()
    good = start_worker(shepherd.port, "good")
    thread.finish()
    assert good.finish(10)


def test_other_data_is_told_before_anything_is_compiled(tmp_path):
    exp, made = experiment(tmp_path, outer_loop_steps=3), []

    def compile_for(target):
        made.append(target)
        return bundle()

    opens = partial(Corpus, exp, BigramTrainer.inputs)
    shepherd, watcher, thread = start_shepherd(
        exp, compile_for=compile_for, workers=1, inspect=opens
    )
    other = tmp_path / "other"
    for content, error, said in (
        (TEXT + b"x", StateMismatch, f"{other} on this machine is not the data"),
        (b"", ConfigError, f"data_path: {other} is empty"),
    ):
        other.write_bytes(content)
        worker = start_worker(shepherd.port, "w", data_path=str(other))
        with pytest.raises(error, match=said):
            worker.finish()
        lines = partial("\n".join, watcher.lines)
        eventually(lambda lines=lines, said=said: f"cannot join: {said}" in lines())
    assert not made, "a program was compiled for it"
    good = start_worker(shepherd.port, "good")
    assert thread.finish().rounds == 3
    assert good.finish(10)
    assert made == ["cpu"]


def test_a_run_whose_data_cannot_be_read_ends_before_a_worker_comes(tmp_path):
    exp = experiment(tmp_path)
    (tmp_path / "text").write_bytes(b"")
    opens = partial(Corpus, exp, BigramTrainer.inputs)
    _, _, thread = start_shepherd(exp, workers=1, inspect=opens)
    with pytest.raises(ConfigError, match="text is empty"):
        thread.finish()


def test_a_run_with_an_older_digest_goes_on(tmp_path, monkeypatch):
    """A ledger from when the digest sampled: the same file is known by that."""
    exp = experiment(tmp_path, outer_loop_steps=2)
    with monkeypatch.context() as patch:
        older = property(lambda self: sampled_digest(np.frombuffer(TEXT, np.uint8)))
        patch.setattr(TokenFile, "digest", older)
        _, folder, _ = run(exp)
    begin = read(folder.ledger)[0][0]
    assert begin["data"] == sampled_digest(np.frombuffer(TEXT, np.uint8))
    longer = exp.model_copy(update={"outer_loop_steps": 4})
    outcome, _, _ = run(longer, folder=folder)
    assert outcome.rounds == 4
    one_byte = bytearray(TEXT)
    one_byte[-1] ^= 1
    (tmp_path / "text").write_bytes(one_byte)
    with pytest.raises(StateMismatch, match="data_path: what it names is another one"):
        run(longer.model_copy(update={"outer_loop_steps": 5}), folder=folder)


def test_the_status_is_there_for_the_asking(tmp_path):
    from pcp.tools.commands.status import ask, lines

    exp = experiment(tmp_path, outer_loop_steps=10)
    shepherd, watcher, thread = start_shepherd(exp, workers=1)
    worker = start_worker(shepherd.port, "w", 0.02)
    watcher.wait_for_round(2)
    values = ask("127.0.0.1", shepherd.port, 5.0)
    assert values["round"] >= 2
    assert [w["worker"] for w in values["workers"]] == ["w"]
    doing = {"computing", "exchanging", "prepared", "ready"}
    assert values["workers"][0]["doing"] in doing
    assert isinstance(present(shepherd.training.rounds).newest, Round)  # the last alone
    (line,) = (line for line in lines(values) if line.startswith("worker "))
    assert re.match(r"worker   0 at 127\.0\.0\.1:\d+, cpu on ", line)
    thread.finish()
    assert worker.finish(10)


def test_metrics_survive_a_torn_line_and_a_rewind(tmp_path):
    exp = experiment(tmp_path, outer_loop_steps=3)
    _, _, watcher = run(exp)
    path = tmp_path / "metrics.jsonl"
    log = MetricsFile(path)
    for record in watcher.rounds:
        log.keep(record)
    log.validation(3, 1.5, 7)
    log.close()
    with open(path, "a") as file:
        file.write('{"kind": "rou')
    said: list[str] = []
    full = MetricsFile(tmp_path / "full.jsonl", said.append)
    real = full._file
    full._file = open("/dev/full", "ab", buffering=0)  # where nothing has room
    for _ in range(2):
        full.keep(watcher.rounds[0])
    (line,) = said
    assert "cannot write the metrics: No space left" in line
    full._file.close()
    full._file = real
    full.keep(watcher.rounds[1])
    full.close()
    assert said[1:] == ["metrics are kept again; 2 lines are left out"]
    assert metrics.read(tmp_path / "full.jsonl")[0] == watcher.rounds[1:2]
    log = MetricsFile(path)
    redone = dataclasses.replace(watcher.rounds[1], loss=9.0)
    log.keep(redone)
    log.close()
    rounds, validations = metrics.read(path)
    assert rounds == [watcher.rounds[0], redone]
    assert validations == {3: 1.5}


def test_a_run_folder_is_found_again(tmp_path):
    exp = experiment(tmp_path, wandb_api_key="secret")
    assert RunFolder.latest(exp) is None
    now = datetime(2026, 1, 2, 3, 4, 5)
    first, second = RunFolder.create(exp, now), RunFolder.create(exp, now)
    assert first.path != second.path
    assert RunFolder.latest(exp) is None  # nothing was begun in it
    Ledger(second.ledger).close()
    second.make_latest()
    assert RunFolder.latest(exp) == second
    assert "secret" not in (second.path / "experiment.json").read_text()
