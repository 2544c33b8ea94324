"""The state machine of a run, one step at a time."""

from contextlib import closing
from typing import Any, get_args

import pytest
from helpers.models.bigram_numpy import BLOCK
from helpers.simulation.run_schedules import experiment, program
from helpers.worlds.training_runs import Watcher
from helpers.worlds.training_runs import experiment as on_disk

from pcp.errors import StateMismatch
from pcp.training.coordinator.asynchronous_rounds import AsynchronousRounds
from pcp.training.coordinator.effects import (
    Append,
    Compile,
    Effect,
    Fail,
    LoadWeights,
    Refuse,
    Send,
)
from pcp.training.coordinator.events import (
    Compiled,
    Event,
    Lost,
    Opened,
    Ordered,
    Received,
    Tick,
)
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.synchronous_rounds import SynchronousRounds
from pcp.training.coordinator.training_run import TrainingRun
from pcp.training.data.lease_pool import size
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage.ledger_state import LedgerReplay
from pcp.training.storage.run_folder import RunFolder
from pcp.training.wire.message import (
    VERSION,
)
from pcp.training.wire.messages import (
    Hello,
    Prepared,
)
from pcp.training.wire.operator_messages import (
    Order,
)

PREPARED = Prepared(
    round=1,
    epoch=1,
    digest="0" * 64,
    loss=1.0,
    loss_first=1.0,
    steps=4,
    tokens=4,
    bytes_sent=0,
    bytes_received=0,
    compute_seconds=1.0,
    exchange_seconds=0.0,
)


class Peer:
    """A connection."""

    here = "127.0.0.1"


def a_run(**keys: Any) -> TrainingRun:
    """One that nobody has joined."""
    state = RunState(
        experiment().model_copy(update=keys),
        LedgerReplay(),
        name="run",
        folder="run",
        serves="127.0.0.1:1",
        wanted=1,
    )
    return TrainingRun(state)


def hello(name: str, version: int = VERSION) -> Hello:
    """What a worker says first."""
    return Hello(
        version=version,
        worker=name,
        target="cpu",
        backend="cpu",
        device="d",
        address=f"{name}:1",
    )


def joined(run: TrainingRun, name: str) -> Peer:
    """A worker that holds the state before the first round."""
    peer = Peer()
    run.step(Received(peer, hello(name)), 0.0)
    run.step(Compiled(peer, program("together")), 0.0)
    return peer


def kinds(effects: list[Effect]) -> list[str]:
    """What a step asks for, messages and lines by their kind."""
    return [
        effect.message.kind
        if isinstance(effect, Send)
        else f"{effect.kind} line"
        if isinstance(effect, Append)
        else type(effect).__name__
        for effect in effects
    ]


def test_every_event_is_taken_and_every_effect_carried_out(tmp_path) -> None:
    run = a_run()
    assert set(run._handlers) == set(get_args(Event))
    exp = on_disk(tmp_path)
    folder = RunFolder.at(tmp_path / "run", exp)
    with closing(Shepherd(exp, folder, lambda _: b"", Watcher())) as shepherd:
        assert set(shepherd._performers) == set(get_args(Effect))


def test_a_run_begins_with_the_first_program_and_keeps_its_policy() -> None:
    for policy, kind in (
        ("together", SynchronousRounds),
        ("own clocks", AsynchronousRounds),
    ):
        run, peer = a_run(), Peer()
        assert run.step(Opened(), 0.0) == []
        assert kinds(run.step(Received(peer, hello("a")), 0.0)) == ["Log", "Compile"]
        effects = run.step(Compiled(peer, program(policy)), 0.0)
        lines = ["begin line", "started line", "NoteSettings", "MakeLatest"]
        assert kinds(effects) == [*lines, "welcome", "restore"]
        chosen = run.rounds
        assert type(chosen) is kind
        again = run.step(Compiled(None, program(policy)), 1.0)
        assert (again, run.rounds) == ([], chosen)


def test_initial_weights_are_asked_for_before_the_first_round_alone() -> None:
    run = a_run(initial_weights="weights")
    assert run.step(Opened(), 0.0) == [LoadWeights()]
    run.state.progress.committed = 1
    assert run.step(Opened(), 0.0) == []


def test_another_version_is_refused_and_nothing_is_compiled() -> None:
    (effect,) = a_run().step(Received(Peer(), hello("a", version=99)), 0.0)
    assert isinstance(effect, Refuse)
    assert "the worker 99" in effect.reason


def test_an_order_before_the_run_has_begun_is_refused() -> None:
    run, order = a_run(), Order(key="k", action="pause")
    (effect,) = run.step(Ordered(Peer(), order), 0.0)
    assert isinstance(effect, Refuse)
    assert "has not begun yet" in effect.reason


def test_what_a_member_may_not_say_is_refused() -> None:
    run = a_run()
    done = Prepared.model_construct(kind="prepared")
    (effect,) = run.step(Received(Peer(), done), 0.0)
    assert isinstance(effect, Refuse)


def test_a_silent_worker_is_dropped_by_time_alone() -> None:
    run = a_run()
    joined(run, "a")
    ends = run.state.experiment.heartbeat_limit_seconds
    for at in (0.5, 1.0, ends):
        run.step(Tick(), at)
        assert "a" in run.state.roster
    said = run.step(Tick(), ends + 0.1)
    assert "a" not in run.state.roster
    assert "Close" in kinds(said)


def test_a_run_of_other_settings_ends_with_an_error_behind_what_was_decided() -> None:
    run, peer = a_run(), Peer()
    run.state.append("begin", run="run", frozen=run.state.experiment.frozen(), data="x")
    run.step(Received(peer, hello("a")), 0.0)
    *_, last = run.step(Compiled(peer, program("together")), 0.0)
    assert isinstance(last, Fail)
    assert isinstance(last.error, StateMismatch)
    assert "data_path" in str(last.error)


@pytest.mark.parametrize("gone", [False, True])
def test_a_program_for_who_has_left_begins_nothing(gone: bool) -> None:
    run, peer = a_run(), Peer()
    asked = run.step(Received(peer, hello("a")), 0.0)
    assert Compile(peer, "cpu") in asked
    if gone:
        run.step(Lost(peer, "gone"), 0.0)
    run.step(Compiled(peer, program("together")), 0.0)
    assert (run.rounds is None) == gone


def test_the_member_that_most_others_cannot_reach_is_dropped() -> None:
    run = a_run()
    run.step(Opened(), 0.0)
    for name in "abcd":
        joined(run, name)
    rounds = run.rounds
    assert rounds is not None
    rounds.start(list(run.state.roster))
    attempt = rounds.attempt
    assert attempt is not None
    attempt.failed_at, attempt.retries = 0.0, 3
    attempt.suspects = {"b": {"c"}, "c": {"a", "b"}, "d": {"c"}}
    rounds.check(1000.0)
    assert {member.name for member in run.state.roster} == set("abd")


def test_speed_is_that_of_a_first_attempt() -> None:
    """A round that is tried again has its inner steps already: it takes no time."""
    run = a_run()
    run.step(Opened(), 0.0)
    joined(run, "a")
    joined(run, "b")
    rounds, member = run.rounds, run.state.roster["a"]
    assert rounds is not None
    rounds.start(list(run.state.roster))
    attempt, speeds = rounds.attempt, []
    assert attempt is not None
    for attempt.first, seconds in ((True, 2.0), (False, 0.0)):
        lease = attempt.leases["a"]
        done = {"compute_seconds": seconds, "epoch": attempt.epoch}
        done |= {"steps": attempt.steps("a", 4), "tokens": size(lease) * BLOCK}
        rounds.heard(member, PREPARED.model_copy(update=done))
        assert [*attempt.prepared] == ["a"]
        speeds.append(member.speed)
    assert speeds == [1.0, 1.0]  # two steps in two seconds
