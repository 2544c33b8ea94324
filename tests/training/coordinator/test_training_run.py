"""The state machine of a run, one step at a time."""

from contextlib import closing
from typing import Any, get_args

import pytest
from helpers.models.bigram_numpy import BLOCK
from helpers.simulation.pure_run import PREPARED, World, a_run, hello
from helpers.simulation.run_schedules import program
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
    Log,
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
from pcp.training.coordinator.roster import UNSEEN, Member, Roster
from pcp.training.coordinator.rounds import Rounds
from pcp.training.coordinator.synchronous_rounds import SynchronousRounds
from pcp.training.coordinator.training_run import TrainingRun
from pcp.training.data.lease_pool import size
from pcp.training.shepherd.shepherd import Shepherd
from pcp.training.storage.run_folder import RunFolder
from pcp.training.wire.messages import (
    AwaitedRanks,
    Computed,
    GroupFailed,
    Heartbeat,
    InnerExchangeReport,
    Prepared,
    Ready,
    Stalled,
    Whereabouts,
)
from pcp.training.wire.operator_messages import (
    Order,
)


class Peer:
    """A connection."""

    here = "127.0.0.1"


def joined(run: TrainingRun, name: str) -> Peer:
    """A worker that holds the state before the first round."""
    peer = Peer()
    run.step(Received(peer, hello(name)), 0.0)
    run.step(Compiled(peer, program("together")), 0.0)
    return peer


def holders(run: TrainingRun) -> list[Member]:
    """All workers, which have said that they hold that state."""
    for member in run.state.roster:
        member.committed = 0
    return list(run.state.roster)


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
    rounds.start(holders(run))
    attempt = rounds.attempt
    assert attempt is not None
    attempt.failed_at, attempt.retries = 0.0, 3
    attempt.suspects = {"b": {"c"}, "c": {"a", "b"}, "d": {"c"}}
    rounds.check(1000.0)
    assert {member.name for member in run.state.roster} == set("abd")


def in_a_round(*names: str) -> tuple[TrainingRun, dict[str, Peer], Rounds]:
    """A first round, with these members."""
    run = a_run()
    run.step(Opened(), 0.0)
    peers = {name: joined(run, name) for name in names}
    for peer in peers.values():
        run.step(Received(peer, Ready(round=0, digest="0" * 64)), 0.0)
    rounds = run.rounds
    assert rounds is not None
    rounds.start(holders(run))
    return run, peers, rounds


def fail_to_form(
    run: TrainingRun, peers: dict[str, Peer], silent: str, at: Whereabouts | None = None
) -> list[Effect]:
    """All but the silent ones say that others did not connect, and time goes by.

    `at` is where the last of the silent ones is.
    """
    rounds = run.rounds
    assert rounds is not None
    attempt = rounds.attempt
    assert attempt is not None
    meeting = InnerExchangeReport(round=1, epoch=attempt.epoch, entered=0, waits=1.0)
    for name in attempt.members:
        if name not in silent:
            said = GroupFailed(round=1, epoch=attempt.epoch, reason="not formed")
            run.step(Received(peers[name], said), run.state.now)
    effects: list[Effect] = []
    for _ in range(5):
        now = run.state.now + 0.4
        for name in attempt.members:
            said = Heartbeat(at=at if name == silent[-1] else None, meeting=meeting)
            run.step(Received(peers[name], said), now)
        effects += run.step(Tick(), now)
    return effects


def test_members_that_say_nothing_while_a_group_fails_again_and_again_go() -> None:
    """A formation that lacks several names none of them."""
    run, peers, rounds = in_a_round(*"abcde")
    for _ in range(3):
        assert "stalled" not in kinds(fail_to_form(run, peers, "ce"))
        assert len(run.state.roster) == 5
    effects = fail_to_form(run, peers, "ce")
    ended = [
        e.connection
        for e in effects
        if isinstance(e, Send) and isinstance(e.message, Stalled)
    ]
    assert ended == [peers["c"], peers["e"]]
    assert rounds.attempt is not None
    assert set(rounds.attempt.members) == set("abd")
    assert {member.name for member in run.state.roster} == set("abd")


@pytest.mark.parametrize("call", ["step", "forming"])
def test_who_was_silent_now_and_then_stays_and_so_does_who_works(call: Any) -> None:
    """Or waits for others: one that fails at once does not unseat them."""
    run, peers, _ = in_a_round(*"abc")
    works = Whereabouts(call=call, steps=1, since=0.0)
    for silent in ("bc", "bc", "c", "bc", "bc", "bc"):
        assert "stalled" not in kinds(fail_to_form(run, peers, silent, works))
    assert len(run.state.roster) == 3


def test_who_waits_in_a_group_of_long_ago_is_no_longer_waited_for() -> None:
    run, peers, _ = in_a_round(*"ab")
    for failures in range(1, 5):
        old = Whereabouts(call="forming", steps=0, since=run.state.now + 2.0)
        said = fail_to_form(run, peers, "b", old)
        assert ("stalled" in kinds(said)) == (failures == 4)


def waits(run: TrainingRun, *ranks: int) -> InnerExchangeReport:
    """Of a member that is in a call to which these ranks have not come."""
    assert run.rounds is not None
    attempt = run.rounds.attempt
    assert attempt is not None
    awaits = AwaitedRanks(ranks=[*ranks], seconds=run.state.now)
    return InnerExchangeReport(
        round=1, epoch=attempt.epoch, entered=0, waits=run.state.now, awaits=awaits
    )


def beat(run: TrainingRun, peer: Peer, *, lacks: str, call: Any = "forming") -> None:
    """A member is where a group of a, b and c is formed, since the beginning."""
    meeting = waits(run, *map("abc".index, lacks))
    if not lacks:
        alone = run.state.now if call in ("forming", "exchange") else None
        meeting = meeting.model_copy(update={"awaits": None, "alone": alone})
    at = Whereabouts(call=call, steps=0, since=run.state.now)
    run.step(Received(peer, Heartbeat(meeting=meeting, at=at)), run.state.now)


def test_who_hangs_where_a_group_is_formed_goes_as_soon_as_a_step_is_late() -> None:
    run, peers, _ = in_a_round(*"abc")
    effects: list[Effect] = []
    for now in range(1, 14):
        for name in "abc":
            run.state.now = float(now)
            beat(run, peers[name], lacks="" if name == "b" else "b")
        effects = run.step(Tick(), float(now))
        if "stalled" in kinds(effects):
            break
    assert run.state.now == 10.0
    (why,) = [e.text for e in effects if isinstance(e, Log) and "left" in e.text]
    assert "2 others waited for it in vain: for 10.0 s it is in 'forming'" in why


@pytest.mark.parametrize("call", ["restoring", "step"])
def test_who_comes_late_to_its_group_since_it_takes_a_state_stays(call: Any) -> None:
    run, peers, _ = in_a_round(*"abc")
    for now in range(1, 50):
        run.state.now = float(now)
        beat(run, peers["a"], lacks="b")
        beat(run, peers["c"], lacks="b")
        beat(run, peers["b"], lacks="", call=call)
        assert "stalled" not in kinds(run.step(Tick(), float(now)))


def test_whom_all_that_failed_lack_goes_at_once_if_it_says_nothing() -> None:
    """As after a wait that is given up before a step is late."""
    run, peers, _ = in_a_round(*"abc")
    run.state.now = 12.0
    for name in "ac":
        said = GroupFailed(round=1, epoch=waits(run).epoch, reason="late", lost=[1])
        run.step(Received(peers[name], said), 12.0)
    effects: list[Effect] = []
    for late in range(8):
        beat(run, peers["b"], lacks="")
        rest = Heartbeat(at=Whereabouts(call="waiting", steps=0, since=0.3 * late))
        run.step(Received(peers["a"], rest), run.state.now)
        run.step(Received(peers["c"], rest), run.state.now)
        effects += run.step(Tick(), 12.0 + 0.3 * late)
    ended = [
        e.connection
        for e in effects
        if isinstance(e, Send) and isinstance(e.message, Stalled)
    ]
    assert ended == [peers["b"]]
    assert set(run.state.roster) == {run.state.roster["a"], run.state.roster["c"]}


def test_a_shepherd_that_starts_again_knows_what_a_step_took() -> None:
    run, peers, rounds = in_a_round("a")
    peer, attempt = peers["a"], rounds.attempt
    assert attempt is not None
    steps, epoch = attempt.steps("a", 4), attempt.epoch
    computed = Computed(round=1, epoch=epoch, loss=1.0, moved=0.0)
    run.step(Received(peer, computed), 6.0)
    tokens = size(attempt.leases["a"]) * BLOCK
    done = {"epoch": epoch, "steps": steps, "tokens": tokens}
    effects = run.step(Received(peer, PREPARED.model_copy(update=done)), 6.0)
    (commit,) = [e for e in effects if isinstance(e, Append) and e.kind == "commit"]
    assert commit.fields["usual_step_seconds"] == 6.0 / steps
    for bundle, known in (("1" * 64, 6.0 / steps), ("9" * 64, None)):
        back = hello("a").model_copy(update={"bundle": bundle})
        run.step(Received(peer, back), 7.0)
        run.step(Compiled(peer, program("together")), 7.0)
        run.step(Tick(), 7.0)
        assert run.state.roster["a"].pace.before == known


def test_speed_is_that_of_a_first_attempt() -> None:
    """A round that is tried again has its inner steps already: it takes no time."""
    run = a_run()
    run.step(Opened(), 0.0)
    joined(run, "a")
    joined(run, "b")
    loop, member = run.loop, run.state.roster["a"]
    assert loop is not None
    loop.rounds.start(holders(run))
    attempt, speeds = loop.rounds.attempt, []
    assert attempt is not None
    for attempt.first, seconds in ((True, 2.0), (False, 0.0)):
        lease = attempt.leases["a"]
        done = {"compute_seconds": seconds, "epoch": attempt.epoch}
        done |= {"steps": attempt.steps("a", 4), "tokens": size(lease) * BLOCK}
        loop.heard(member, PREPARED.model_copy(update=done))
        assert [*attempt.prepared] == ["a"]
        speeds.append(member.speed)
    assert speeds == [1.0, 1.0]  # two steps in two seconds


def test_absent_workers_are_known_to_the_next_shepherd_too() -> None:
    """Names keep their index; at most as many are absent as the run lacks."""
    rows = [
        {"worker": name, "index": index, "address": f"{name}:1"}
        for index, name in enumerate("abc")
    ]
    rows[2]["left"] = "silent for 3.0 s"
    roster = Roster(rows)

    def absent(wanted: int) -> list[tuple[int, str]]:
        return [(row["index"], row["left"]) for row in roster.absent(wanted)]

    assert absent(3) == [(0, UNSEEN), (1, UNSEEN), (2, "silent for 3.0 s")]
    assert absent(7) == absent(3)
    back = roster.add(Peer(), hello("b"), 0.0)
    assert back.index == 1
    assert absent(3) == [(0, UNSEEN), (2, "silent for 3.0 s")]
    assert absent(2) == [(2, "silent for 3.0 s")]
    assert absent(1) == []
    other = roster.add(Peer(), hello("d"), 0.0)  # in the place of a
    assert other.index == 0
    assert absent(3) == [(2, "silent for 3.0 s")]
    roster.remove(back, "drained by the operator")
    assert absent(3) == [(2, "silent for 3.0 s"), (1, "drained by the operator")]
    roster.remove(other)
    assert len(absent(9)) == 2


def test_who_leaves_after_the_last_round_is_not_missed() -> None:
    world = World("a", "b", outer_loop_steps=1)
    world.makes()
    world.tick()
    assert world.run.state.completing_since is not None
    world.step(Lost(world.peers["b"], "gone"))
    assert world.run.status()["absent"] == []


def test_who_is_alone_where_an_older_group_formed_is_let_go_if_others_lack_it() -> None:
    """As an island of which one rank hangs there; not before it could have come."""
    run, peers, rounds = in_a_round(*"abc")
    attempt = rounds.attempt
    assert attempt is not None
    attempt.launched = 100.0
    older = waits(run).model_copy(
        update={"epoch": attempt.epoch - 1, "awaits": None, "alone": 90.0}
    )
    for now in range(101, 120):
        run.state.now = float(now)
        for name in "ac":
            at = Whereabouts(call="forming", steps=0, since=now - 100.0)
            report = waits(run, 1).model_copy(
                update={"awaits": AwaitedRanks(ranks=[1], seconds=now - 100.0)}
            )
            run.step(
                Received(peers[name], Heartbeat(meeting=report, at=at)), float(now)
            )
        step = Whereabouts(call="step", steps=0, since=now - 100.0)
        run.step(Received(peers["b"], Heartbeat(meeting=older, at=step)), float(now))
        if "stalled" in kinds(run.step(Tick(), float(now))):
            break
    assert run.state.now == 110.0
