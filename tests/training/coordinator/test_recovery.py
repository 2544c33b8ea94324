"""Who holds the committed state, and what a shepherd holds of it."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Any

import pytest
from helpers.worlds.communicators import eventually
from helpers.worlds.scripted_worker import Puppet, prepared
from helpers.worlds.training_runs import (
    experiment,
    order,
    run,
    start_shepherd,
    start_worker,
)

from pcp.errors import Timeout
from pcp.runtime import fetch_snapshot
from pcp.training.coordinator.checkpointing import Saver
from pcp.training.coordinator.events import SavedState
from pcp.training.coordinator.recovery import Recovery
from pcp.training.coordinator.roster import READY, RESTORING
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.synchronous_rounds import SynchronousRounds
from pcp.training.coordinator.validation import Validation
from pcp.training.data.lease_pool import LeasePool
from pcp.training.shepherd import serving
from pcp.training.storage.ledger import Ledger, read
from pcp.training.storage.ledger_state import CHECKPOINT, LedgerReplay
from pcp.training.storage.run_folder import RunFolder
from pcp.training.wire.messages import (
    Hello,
)
from pcp.training.worker import worker


def test_a_checkpoint_is_let_go_when_the_run_has_left_it_behind(tmp_path, monkeypatch):
    """Neither its arrays nor what the endpoint handed out stay in memory."""
    _, folder, _ = run(experiment(tmp_path, outer_loop_steps=2))
    held, served = [], serving.snapshot_of

    def noted(saved, indices):
        arrays = served(saved, indices)
        held.extend(weakref.ref(array) for array in arrays.values())
        return arrays

    monkeypatch.setattr(serving, "snapshot_of", noted)
    longer = experiment(tmp_path, outer_loop_steps=4)
    shepherd, _, thread = start_shepherd(longer, folder, workers=2)
    crew = [start_worker(shepherd.port, f"w{i}", pause=0.02) for i in range(2)]
    assert thread.finish().rounds == 4
    for one in crew:
        one.finish(10)
    sources = [r["source"] for r in read(folder.ledger)[0] if r["kind"] == "joined"]
    assert sources[-2:] == ["(checkpoint)"] * 2
    gc.collect()
    assert held
    assert not [ref for ref in held if ref() is not None]


@pytest.fixture(autouse=True)
def puppets_are_believed(monkeypatch) -> None:
    """They have no state to show, of which `test_values.py` is."""
    monkeypatch.setattr(Saver, "proves", lambda self, holders: False)


@pytest.fixture
def pair(tmp_path) -> Iterator[tuple[Any, Puppet, Puppet]]:
    """A shepherd; who holds round 2, and who joined after round 1.

    Both were told to make round 3: in its group the second takes round 2 of the first.
    """
    exp = experiment(tmp_path, checkpoint_every=100)
    shepherd, _, thread = start_shepherd(exp, workers=1)
    shepherd.state.grace = 0.3  # nobody else will bring a state
    first = Puppet(shepherd.port, "first")
    first.restores()
    first.makes(1)
    order = first.hears("round_start")
    second = Puppet(shepherd.port, "second")
    assert second.restores().round == 1
    _is_ready(shepherd, "second", 1)
    first.prepares(order)
    first.hears("commit")
    first.hears("round_start")
    second.hears("round_start")
    yield shepherd, first, second
    _ended(shepherd, thread, (first, second))


def _is_ready(shepherd: Any, name: str, round_: int) -> None:
    """Wait until the shepherd has read that a worker holds a round.

    Else the next round may begin without it, and lasts until its members end it.
    """
    eventually(lambda: shepherd.roster[name].committed == round_)


def _end() -> None:
    raise KeyboardInterrupt


def test_who_caught_up_inside_a_group_is_a_holder_when_the_others_die(pair):
    shepherd, first, second = pair
    second.holds(2)
    first.dies()
    second.makes(3)
    assert shepherd.committed >= 3
    assert not _rewinds(shepherd)


def test_who_is_ahead_of_a_run_that_went_back_takes_its_state(pair):
    """The run believes that it holds round 1, and it holds a round 2 that is no more.

    The storm of benchmarks/faults.py found it: the worker took the order of round 2
    for one that had come late, and everybody waited for it.
    """
    shepherd, first, second = pair
    first.dies()  # before the second could say that it has round 2
    order = second.hears("round_start")
    assert (_rewinds(shepherd), order.round) == ([1], 2)
    second.holds(2)
    assert second.restores().round == 0
    assert _rewinds(shepherd) == [1, 0]
    second.makes(1)


def test_a_state_of_another_history_is_not_taken_for_the_same_round(pair):
    shepherd, first, second = pair
    second.holds(2, "of another run")
    assert second.restores().round == 2
    _is_ready(shepherd, "second", 2)
    first.makes(3)
    assert second.hears("round_start").round == 4
    assert not _rewinds(shepherd)


def test_who_lacks_a_state_after_it_said_that_it_has_one_takes_another(pair):
    """It had been told twice, over two connections, and said ready after the first.

    Drawn schedules found it: it was taken for a holder for ever, and could do nothing.
    """
    shepherd, first, second = pair
    second.lacks(2)
    assert second.restores().round == 2
    _is_ready(shepherd, "second", 2)
    first.makes(3)
    assert second.hears("round_start").round == 4


def test_who_cannot_reach_one_holder_is_sent_to_another(pair):
    shepherd, _, second = pair
    second.holds(2)
    third = Puppet(shepherd.port, "third")
    try:
        assert third.hears("restore").round == 2
        third.lacks(2)
        assert third.restores().round == 2
        _is_ready(shepherd, "third", 2)
    finally:
        third.dies()
    lines = read(shepherd.folder.ledger)[0]
    joined = [r for r in lines if r["kind"] == "joined" and r["worker"] == "third"]
    assert [r["source"] for r in joined] == ["second"]


def test_a_source_that_says_nothing_is_left_at_once(tmp_path, monkeypatch):
    """Frozen, or cut off: the others have the state too."""
    asked = []

    def silent_once(source, *args, **more):
        asked.append(source)
        if len(asked) == 1:
            raise Timeout("nothing came")
        return fetch_snapshot(source, *args, **more)

    exp = experiment(tmp_path, outer_loop_steps=4000, max_epochs=200)
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    crew = [start_worker(shepherd.port, f"w{i}", pause=0.02) for i in range(2)]
    watcher.wait_for_round(2)
    monkeypatch.setattr(worker, "fetch_snapshot", silent_once)
    crew.append(start_worker(shepherd.port, "w2", pause=0.02))
    eventually(lambda: watcher.rounds[-1].workers == 3, 30)
    order(shepherd, "cancel")
    thread.finish()
    assert [w.finish(10) for w in crew]
    assert len(asked) == len(set(asked)) == 2


class Nobody:
    """A connection to no worker."""

    here = "127.0.0.1"


def test_shares_are_cut_anew_only_when_nobody_is_taking_one(tmp_path):
    """Else those who are ready are told to take others, and are never so together.

    Drawn schedules found it, on own clocks: they did that for as long as they were
    watched, some twenty lines of the ledger a second.
    """
    state = RunState(
        experiment(tmp_path, workers=3),
        LedgerReplay(),
        name="run",
        folder="run",
        serves="127.0.0.1:1",
    )
    saver = Saver(state)
    rounds = SynchronousRounds(state, LeasePool(100, 4), Validation(state), saver)
    hellos = [Hello.model_construct(worker=name) for name in "abc"]
    a, b, c = (state.roster.add(Nobody(), hello, 0.0) for hello in hellos)
    found = Recovery(state, rounds)
    state.serve(SavedState(0, workers=2))
    a.state, a.committed = READY, 0
    b.state, b.taking = RESTORING, {"source": CHECKPOINT}
    assert not found.redistributed([a])
    assert a.state == READY
    b.state, b.committed = READY, 0
    assert found.redistributed([a, b])
    c.state, c.committed = READY, 0
    assert not found.redistributed([a, b, c])
    assert {m.state for m in (a, b, c)} == {RESTORING}


def test_what_was_prepared_with_somebody_whose_lease_went_back_is_made_again(tmp_path):
    """The last shepherd took a lease back, and died before it said so to the others.

    Drawn schedules found it: the state had a part in it that the ledger did not have.
    """
    exp = experiment(tmp_path, workers=1)
    folder = RunFolder.create(exp, datetime(2026, 1, 1))
    shepherd, _, thread = start_shepherd(exp, folder, workers=2)
    crew = [Puppet(shepherd.port, name) for name in "ab"]
    for puppet in crew:
        puppet.restores()
    orders = [puppet.hears("round_start") for puppet in crew]
    _ended(shepherd, thread, crew)
    with closing(Ledger(folder.ledger)) as ledger:
        assert [*ledger.progress.outstanding] == ["a", "b"]
        ledger.append("returned", round=1, worker="b")
    shepherd, _, thread = start_shepherd(exp, folder, workers=1)
    done = prepared(1, orders[0].epoch, orders[0].steps)
    a = Puppet(shepherd.port, "a", run=folder.name, committed=0, prepared=done)
    order = a.hears("round_start")
    assert (order.round, order.lease) == (1, orders[0].lease)
    assert order.epoch > orders[0].epoch
    _ended(shepherd, thread, [a])


def _ended(shepherd, thread, crew) -> None:
    shepherd.watch_over(_end)
    with pytest.raises(KeyboardInterrupt):
        thread.finish()
    for puppet in crew:
        puppet.dies()


def _rewinds(shepherd) -> list[int]:
    lines = read(shepherd.folder.ledger)[0]
    return [line["to"] for line in lines if line["kind"] == "rewind"]
