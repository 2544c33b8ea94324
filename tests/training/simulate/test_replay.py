"""Runs with deaths, newcomers and orders, made again from their ledgers."""

import json
import signal
from contextlib import closing

import pytest
from helpers.models import closed_form
from helpers.models.bigram_numpy import BigramTrainer
from helpers.models.bigram_numpy import bundle as bigram
from helpers.servers.processes import Processes, free_port
from helpers.worlds.communicators import eventually
from helpers.worlds.resumed_runs import bundle, keys
from helpers.worlds.training_cluster import Crew, Hasty, load_bundle, slowly
from helpers.worlds.training_runs import experiment, order, start_shepherd, start_worker

from pcp.bundle import sha256
from pcp.errors import RuntimeFault, StateMismatch
from pcp.runtime.communicator.group_communicator import GroupCommunicator
from pcp.training.simulate.replay import Replay
from pcp.training.simulate.replay_worker import ReplayWorker
from pcp.training.storage import ledger as ledgers
from pcp.training.storage.ledger import read
from pcp.training.storage.ledger_state import CHECKPOINT
from pcp.training.wire.channel import Channel

WORKER, SHEPHERD = "helpers.models.bigram_numpy", "helpers.worlds.shepherd_process"
SLOW = pytest.mark.slow


def replay(path, load=lambda exp, target: (BigramTrainer(), sha256(bigram()))):
    """All rounds of a ledger made again, and the notes."""
    with closing(Replay(read(path)[0], load)) as again:
        return list(again.rounds()), again.notes


def _rounds(watcher, number):
    """Wait for so many more."""
    watcher.wait_for_round(watcher.rounds[-1].round + number)


def _pause(shepherd):
    """Behind the round under way: who joins beside it would be one behind."""
    order(shepherd, "pause")
    eventually(lambda: shepherd.status()["phase"] == "paused", 30)


def _ready(shepherd, count):
    """Wait until so many workers hold the state; no round begins meanwhile."""
    eventually(lambda: len(shepherd.roster.holders(shepherd.committed)) == count, 30)
    order(shepherd, "resume")


@pytest.mark.slow  # four processes
def test_a_run_with_deaths_newcomers_and_orders_is_made_again(tmp_path, processes):
    exp = experiment(tmp_path, outer_loop_steps=1000, max_epochs=1000)
    shepherd, watcher, thread = start_shepherd(exp, workers=3)
    crew = [processes.start(WORKER, name, shepherd.port, 0.01) for name in "abc"]
    watcher.wait_for_round(2)
    crew[0].signal(signal.SIGKILL)
    _rounds(watcher, 1)
    order(shepherd, "steps", steps=6)
    _pause(shepherd)
    crew[0] = processes.start(WORKER, "d", shepherd.port, 0.01)
    _ready(shepherd, 3)
    _rounds(watcher, 2)
    crew[1].signal(signal.SIGKILL)
    _rounds(watcher, 2)
    order(shepherd, "cancel")
    thread.finish()
    made, notes = replay(shepherd.folder.ledger)
    assert notes == []
    assert [m.round for m in made] == [r.round for r in watcher.rounds]
    assert [m.difference() for m in made if not m.same] == []
    assert [m.workers for m in made] == [r.workers for r in watcher.rounds]
    assert {m.workers for m in made} == {2, 3}
    assert all(m.loss_found == m.loss_recorded for m in made)
    assert {m.steps for r in watcher.rounds for m in r.members} == {4, 6}
    _says_what_differs_first(shepherd.folder.ledger, tmp_path)


def test_a_run_of_far_members_is_made_again_where_they_are_near(tmp_path, monkeypatch):
    """Its sums have another order than the ring's; the ledger has the distance."""
    monkeypatch.setattr(Channel, "round_trip", 0.1)
    monkeypatch.setattr(GroupCommunicator, "measured_round_trip", 0.1)
    exp = experiment(tmp_path, outer_loop_steps=4)
    shepherd, watcher, thread = start_shepherd(exp, workers=3)
    crew = [start_worker(shepherd.port, name) for name in "abc"]
    thread.finish()
    assert all(worker.finish(10) for worker in crew)
    monkeypatch.undo()
    path = shepherd.folder.ledger
    orders = [line for line in read(path)[0] if line["kind"] == "round"]
    assert orders[0]["distance"] == [0.1, 0]
    trips, rates = zip(*(line["distance"] for line in orders), strict=True)
    assert {*trips} == {0.1}
    assert all(rates[1:])
    made, _ = replay(path)
    assert [m.difference() for m in made if not m.same] == []
    assert len(made) == len(watcher.rounds) == 4
    near = _changed(
        path, tmp_path / "near.jsonl", lambda r: {"distance": None}, "round"
    )
    assert not all(m.same for m in replay(near)[0])


def _says_what_differs_first(path, folder):
    """Another program, a changed line, and lines that an older pcp wrote."""

    class Other(BigramTrainer):
        def step(self, batches):
            self.velocity = self.velocity * 1.0001
            return super().step(batches)

    (made, notes) = replay(path, lambda exp, target: (Other(), "0" * 64))
    assert not made[-1].same
    assert "another program, data or processor" in made[-1].difference()
    assert "the program for cpu is not the recorded one" in notes[0]

    def wrong(record):
        at = record["kind"] == "commit" and record["round"] == 3
        return {"digest": "f" * 64} if at else {}

    made, _ = replay(_changed(path, folder / "wrong.jsonl", wrong))
    assert [m.round for m in made] == [1, 2, 3]
    said = made[-1].difference()
    assert said.startswith("round 3 differs: digest ffffffffffff is recorded")
    assert "look at the outer step" in said
    old = folder / "old.jsonl"
    _changed(path, old, lambda r: {"kind": "order", "action": "x"}, kind="started")
    with pytest.raises(StateMismatch, match="begun by an older pcp"):
        replay(old)


def _changed(path, new, change, kind=None):
    lines = []
    for record in read(path)[0]:
        chosen = kind in (None, record["kind"])
        lines.append(ledgers._line(record | (change(record) if chosen else {})))
    new.write_bytes(b"".join(lines))
    return new


@SLOW
@pytest.mark.parametrize(("limit", "kept"), [(1000, True), (0, False)])
def test_a_worker_that_lost_touch_keeps_its_inner_state(
    tmp_path, processes, limit, kept
):
    """Frozen, dropped, back: what it kept decides the digests that follow."""
    keys = {"heartbeat_limit_seconds": 0.6, "rejoin_rounds": limit}
    exp = experiment(tmp_path, outer_loop_steps=1000, max_epochs=1000, **keys)
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    crew = [processes.start(WORKER, name, shepherd.port, 0.02) for name in "ab"]
    watcher.wait_for_round(3)
    crew[0].signal(signal.SIGSTOP)
    try:
        _rounds(watcher, 3)
        assert watcher.rounds[-1].workers == 1
        _pause(shepherd)
    finally:
        crew[0].signal(signal.SIGCONT)
    _ready(shepherd, 2)
    _rounds(watcher, 2)
    order(shepherd, "cancel")
    thread.finish()
    assert watcher.rounds[-1].workers == 2
    path = shepherd.folder.ledger
    joined = [r for r in read(path)[0] if r["kind"] == "joined"]
    assert [r["worker"] for r in joined if r["round"]] == ["a"]
    assert bool(joined[-1].get("keep")) is kept
    made, _ = replay(path)
    assert [m.difference() for m in made if not m.same] == []

    def otherwise(record):
        return (
            {"keep": not kept} if record["kind"] == "joined" and record["round"] else {}
        )

    made, _ = replay(_changed(path, tmp_path / "otherwise.jsonl", otherwise))
    assert not made[-1].same, "a veteran's inner state is another one"


@SLOW
def test_a_run_whose_shepherd_and_workers_all_died_is_made_again(tmp_path, processes):
    """Killed shepherd; then everything, so that rounds are lost and made anew."""
    given = {"outer_loop_steps": 12, "checkpoint_every": 3}
    arguments = (tmp_path, free_port(), 2, json.dumps(given))
    crew = [processes.start(WORKER, name, arguments[1], 0.03) for name in "ab"]
    shepherd = processes.start(SHEPHERD, *arguments)
    shepherd.wait_for("round 2/12")
    shepherd.signal(signal.SIGKILL)
    shepherd.wait()
    shepherd = processes.start(SHEPHERD, *arguments)
    shepherd.wait_for("round 8/12")
    for process in [shepherd, *crew]:
        process.signal(signal.SIGKILL)
        process.wait()
    for name in ("a", "d", "e"):  # a name that was there before, and others
        processes.start(WORKER, name, arguments[1], 0.03)
    shepherd = processes.start(SHEPHERD, *arguments)
    assert shepherd.wait(60) == 0, shepherd.text
    path = tmp_path / "run" / "ledger.jsonl"
    kinds = [record["kind"] for record in read(path)[0]]
    assert "rewind" in kinds
    made, notes = replay(path)
    assert notes == []
    assert all(m.same for m in made)
    assert made[-1].round == 12
    assert len(made) == kinds.count("commit") > 12
    assert made[-1].workers == 3


COMPILED = (
    ("sparseloco{k=64}", "adamw"),
    ("eager", "sgd"),
    ("noloco", "sgd"),
    ("async_diloco", "nesterov"),
    ("streaming_diloco{fragments=2}", "sgd"),
    ("demo", "sgd"),
    ("mezo", "sgd"),
)


@SLOW
@pytest.mark.parametrize(("algorithm", "optimizer"), COMPILED)
@pytest.mark.parametrize("after", [2, 4])
def test_what_was_a_workers_own_is_made_again(tmp_path, algorithm, optimizer, after):
    """Compiled: three are killed, two or four share out the checkpoint and go on."""
    content = bundle(algorithm, f"{optimizer}{{lr=0.02}}")
    (tmp_path / "code").write_bytes(content)
    given = keys()
    with Processes() as started:
        arguments = (tmp_path, tmp_path / "code", 3, 2, json.dumps(given))
        doomed = started.start("helpers.worlds.resumed_runs", *arguments)
        assert doomed.wait(60) == -signal.SIGKILL, doomed.text
    if after < 3:  # who does not come back is waited for, but not for long
        given |= {"heartbeat_limit_seconds": 0.6}
    exp = experiment(tmp_path, **given)
    crew = Crew(exp, tmp_path / "run", content, after, shepherd=Hasty)
    assert crew.finish().round == 5
    made, notes = replay(
        crew.ledger, lambda exp, target: (load_bundle(content), sha256(content))
    )
    assert notes == []
    assert [m.difference() for m in made if not m.same] == []
    assert made[-1].round == 5
    assert made[-1].workers == after


def test_a_checkpoint_is_kept_for_who_comes_after_it() -> None:
    commit = {"kind": "commit", "round": 2}
    joined = {"kind": "joined", "round": 2, "source": CHECKPOINT}
    saved = {"kind": "checkpoint", "round": 2, "members": []}
    for lines, kept in (
        ([commit, joined, saved], []),
        ([commit, saved, joined], [2]),
        ([commit, saved, {"kind": "rewind", "to": 2}], [2]),
        ([commit, saved, joined | {"source": "a"}], []),
    ):
        records = [{"n": n} | line for n, line in enumerate(lines)]
        with closing(Replay(records, lambda exp, target: (BigramTrainer(), ""))) as it:
            it._save(next(r for r in records if r["kind"] == "checkpoint"))
            assert list(it._saved) == kept


LATE = {"late": "next", "quorum": 2, "grace_seconds": 0.02}
PUSHES = "async_local_sgd{period=3,lr=0.5,momentum=0.5}"


@SLOW
@pytest.mark.parametrize(("algorithm", "more"), [("diloco", LATE), (PUSHES, {})])
def test_what_came_late_is_made_again(tmp_path, algorithm, more):
    """Steps from an older state, merged later: at a discount, or on own clocks."""
    content = closed_form.bundle("quadratic", algorithm).to_bytes()
    given = {"vocabulary_size": 128, "tau": 2, "checkpoint_every": 4}
    exp = experiment(tmp_path, outer_loop_steps=12, max_epochs=100, **given, **more)
    pauses = [slowly(pause) for pause in (0.02, 0.03, 0.12)]
    crew = Crew(exp, tmp_path / "run", content, 3, pauses)
    crew.finish()
    kinds = {record["kind"] for record in read(crew.ledger)[0]}
    assert kinds & {"late", "lease"}
    made, notes = replay(
        crew.ledger, lambda exp, target: (load_bundle(content), sha256(content))
    )
    assert notes == []
    assert [m.difference() for m in made if not m.same] == []
    assert made[-1].round == 12


def test_who_fails_holds_nobody_up(tmp_path, monkeypatch) -> None:
    exp = experiment(tmp_path, outer_loop_steps=3)
    shepherd, _, thread = start_shepherd(exp, workers=2)
    workers = [start_worker(shepherd.port, name, 0.01) for name in "ab"]
    thread.finish()
    for worker in workers:
        worker.finish(10)
    make = ReplayWorker.make

    def fails(self, order):
        if order.rank == 1:
            raise RuntimeFault("no memory is left")
        return make(self, order)

    monkeypatch.setattr(ReplayWorker, "make", fails)
    with pytest.raises(RuntimeFault, match="no memory is left"):
        replay(shepherd.ledger.path)
