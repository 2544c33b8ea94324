"""Members that live and do not get on: they go, and it is said where they are."""

from typing import Any

import pytest
from helpers.worlds.training_runs import experiment, start_shepherd

from pcp.training.coordinator.guards import progress_guard
from pcp.training.coordinator.guards.progress_guard import Pace
from pcp.training.process.supervisor import HUNG
from pcp.training.storage.ledger import check
from pcp.training.wire.messages import (
    Whereabouts,
)
from pcp.training.worker.whereabouts import Call


def at(steps: int, call: Call = "step", since: float = 1.0) -> Whereabouts:
    """Where a worker's thread is."""
    return Whereabouts(call=call, steps=steps, since=since)


def test_a_step_is_made_within_ten_times_the_usual_or_ten_seconds() -> None:
    for usual, limit in ((0.1, 10.0), (3.0, 30.0)):
        pace = Pace()
        pace.heard(at(0), 0.0)
        pace.made(4, 4 * usual)
        pace.works(0.0)
        assert pace.stalled(limit) is None
        assert "it is in 'step'" in (pace.stalled(limit + 0.1) or "")
        pace.heard(at(1), limit)
        assert pace.stalled(limit + 0.1) is None, "it has made one"


def test_steps_of_no_whole_round_are_known_by_their_heartbeats() -> None:
    """The program is loaded: the time of a first step is not given again."""
    for seconds, limit in ((2.0, 60.0), (20.0, 200.0)):
        pace = Pace()
        pace.heard(at(0), 0.0)
        pace.works(0.0)
        assert pace.limit == 600.0
        pace.heard(at(3), 3 * seconds)
        assert pace.limit == limit
        pace.made(3, 0.1)
        assert pace.limit == 10.0


def test_who_waits_for_others_or_has_nothing_to_do_does_not_stall() -> None:
    calls: tuple[Call, ...] = ("exchange", "forming")
    for call in calls:
        pace = Pace()
        pace.made(1, 0.1)
        pace.works(0.0)
        for now in range(100):
            pace.heard(at(0, call), now)
        assert pace.stalled(101.0) is None
    pace = Pace()
    pace.heard(at(0), 0.0)
    pace.made(1, 0.1)
    pace.rests(0.0)
    assert pace.stalled(1e6) is None
    pace.works(1e6)
    assert pace.stalled(1e6 + 9) is None


def test_who_is_left_out_and_asked_anew_has_no_more_time_by_that() -> None:
    """Its seconds count together, unless its thread did anything since it was asked."""

    def asked_for_nine_seconds(acts: str) -> str | None:
        """What is said in the third of three attempts."""
        pace = Pace()
        pace.heard(at(4, "waiting", 0.0), 0.0)
        pace.made(1, 0.1)
        pace.rests(0.0)
        for began in (10.0, 20.0, 30.0):
            pace.works(began)
            still = at(4, "waiting", began + 4.0)
            entered, stepped = at(4, "step", 3.9), at(5, "waiting", began + 4.0)
            said = {"entered": entered, "stepped": stepped}.get(acts, still)
            if began == 20.0:
                pace.heard(said, began + 4.0)
            if began == 20.0 and acts == "spoke":
                pace.acted(began + 4.0)
            if began < 30.0:
                pace.rests(began + 9.0)
        pace.heard(still, 34.0)
        return pace.stalled(31.5)

    assert "no inner step for 19.5 s" in (asked_for_nine_seconds("nothing") or "")
    for acts in ("entered", "stepped", "spoke"):
        assert asked_for_nine_seconds(acts) is None, acts


def test_a_wait_for_others_that_a_newer_order_has_ended_is_no_progress() -> None:
    calls: tuple[Call, ...] = ("exchange", "forming")
    for call in calls:
        pace = Pace()
        pace.made(1, 0.1)
        pace.works(0.0)
        pace.heard(at(0, call, 0.0), 0.0)
        pace.ordered(30.0)
        pace.heard(at(0, call, 0.0), 30.0)  # it has begun anew
        for now in range(31, 60):
            pace.heard(at(0, call, now - 30.0), now)
        assert pace.stalled(60.0) is None
        pace.ordered(60.0)
        for now in range(61, 80):
            pace.heard(at(0, call, now - 30.0), now)
        assert f"it is in {call!r} for 49.0 s" in (pace.stalled(79.0) or "")


def test_a_new_shepherd_knows_what_was_usual_under_the_one_before() -> None:
    """But a process that has made no step may have to compile its program."""
    for steps, limit in ((0, 600.0), (7, 30.0)):
        pace = Pace()
        pace.before = 3.0
        pace.heard(at(steps), 0.0)
        pace.works(0.0)
        assert pace.stalled(limit) is None
        assert pace.stalled(limit + 0.1) is not None
        pace.made(1, 0.1)
        assert pace.limit == 10.0, "its own"


def test_a_first_step_may_be_long_in_coming() -> None:
    pace = Pace()
    pace.heard(at(0), 0.0)
    pace.works(0.0)
    assert pace.stalled(500.0) is None
    assert pace.stalled(601.0) is not None


def test_a_first_step_is_expected_as_others_of_the_target_made_theirs() -> None:
    pace = Pace()
    pace.heard(at(0), 0.0)
    pace.works(0.0)
    pace.first = 20.0
    assert pace.stalled(200.0) is None
    assert pace.stalled(200.1) is not None
    pace.first = 2.0
    assert pace.limit == 60.0
    pace.heard(at(3), 15.0)
    assert pace.first_took == 15.0
    pace.heard(at(9), 20.0)
    assert pace.first_took == 15.0


def test_who_has_not_begun_has_nothing_to_load_first() -> None:
    pace = Pace()
    pace.heard(at(0, "waiting", 5.0), 0.0)
    pace.ordered(0.0)
    pace.works(0.0)
    assert pace.stalled(10.0) is None
    pace.heard(at(0, "waiting", 15.1), 10.1)
    assert "it is in 'waiting' for 15.1 s" in (pace.stalled(10.1) or "")


def test_a_wait_for_others_that_are_all_further_is_no_progress() -> None:
    pace = Pace()
    pace.made(1, 0.1)
    pace.ordered(0.0)
    pace.works(0.0)
    for now in range(1, 30):
        pace.heard(at(0, "exchange", now - 0.5), now)
    assert pace.stalled(30.0) is None
    pace.behind = True
    for now in range(30, 41):
        pace.heard(at(0, "exchange", now - 0.5), now)
    assert "it is in 'exchange' for 39.5 s" in (pace.stalled(40.0) or "")


def test_who_did_not_come_to_a_group_stays_away_until_it_does_something_else() -> None:
    pace = Pace()
    pace.ordered(0.0)
    pace.heard(at(0, "step", 9.0), 5.0)
    assert pace.may_come(10.0)
    assert not pace.may_come(10.1)
    pace.away = True
    pace.heard(at(0, "step", 16.0), 12.0)
    assert pace.away
    pace.heard(at(1, "waiting", 0.5), 14.0)
    assert not pace.away
    pace.away = True
    pace.heard(at(1, "waiting", 1.5), 15.0)
    assert pace.away
    pace.heard(at(1, "waiting", 1.2), 16.2)  # it did something, and waits once more
    assert not pace.away
    pace.rests(29.0)
    pace.works(30.0)
    pace.heard(at(1, "validating", 0.0), 30.0)
    assert pace.may_come(40.0), "that comes before an order"
    assert not pace.may_come(40.1), "it does not get on with it"


@pytest.mark.parametrize(
    ("call", "said", "deadline"),
    [
        ("step", "no inner step for", None),
        pytest.param(  # it is left out of round after round
            *("step", "no inner step for", 0.8), marks=pytest.mark.slow
        ),
        pytest.param(
            *("forming", "waited for it in vain", None), marks=pytest.mark.slow
        ),
        pytest.param(
            *("exchange", "waited for it in vain", None),
            marks=pytest.mark.slow,  # the guard of the one before: another place
        ),
    ],
)
def test_a_worker_whose_thread_hangs_is_let_go_and_ends(
    tmp_path, processes, monkeypatch, call: str, said: str, deadline: float | None
) -> None:
    """Its heartbeats go on: it is known by its steps, or by who waits for it."""
    monkeypatch.setattr(progress_guard, "LEAST_SECONDS", 2.0)
    exp = experiment(tmp_path, outer_loop_steps=12, round_deadline_seconds=deadline)
    shepherd, watcher, thread = start_shepherd(exp, workers=3)
    crew = [
        processes.start("helpers.models.bigram_numpy", name, shepherd.port, 0.03, *how)
        for name, how in (("a", ()), ("b", (call,)), ("c", ()))
    ]
    outcome = thread.finish(60)
    assert outcome.rounds == 12
    assert [record.workers for record in watcher.rounds][-1] <= 2
    check(shepherd.folder.ledger)
    (line,) = [line for line in watcher.lines if said in line]
    assert "left" in line
    assert f"is in {call!r}" in line
    assert crew[1].wait(20) == HUNG
    assert "bigram_numpy.py" in crew[1].text, "where its threads are"


def test_a_worker_that_hangs_with_what_heartbeats_need_ends(
    tmp_path, processes
) -> None:
    """It is silent, so it is left at once; the process notices by itself, and ends."""
    exp = experiment(tmp_path, outer_loop_steps=12, heartbeat_limit_seconds=1.0)
    shepherd, watcher, thread = start_shepherd(exp, workers=2)
    each = "helpers.models.bigram_numpy"
    processes.start(each, "a", shepherd.port, 0.03)
    hung = processes.start(each, "b", shepherd.port, 0.03, "sending")
    assert thread.finish(60).rounds == 12
    assert any("left: silent for" in line for line in watcher.lines)
    assert hung.wait(20) == HUNG
    assert "no heartbeat can be made" in hung.text
    assert "bigram_numpy.py" in hung.text, "where its threads are"


@pytest.mark.slow  # one that hangs later is above
def test_a_worker_that_hangs_before_it_has_connected_is_let_go_and_ends(
    tmp_path, processes, monkeypatch
) -> None:
    """Its link's thread says hello, and nobody takes what it is told."""
    monkeypatch.setattr(progress_guard, "LEAST_SECONDS", 1.0)
    shepherd, watcher, thread = start_shepherd(
        experiment(tmp_path, outer_loop_steps=3), workers=2
    )

    def start(name: str, *how: str) -> Any:
        each = "helpers.models.bigram_numpy", name, shepherd.port, 0.01, *how
        return processes.start(*each)

    hung, _ = start("a", "starting"), start("b")
    assert hung.wait(30) == HUNG
    assert "bigram_numpy.py" in hung.text, "where its threads are"
    start("c")  # as its supervisor does
    assert thread.finish(60).rounds == 3
    assert [record.workers for record in watcher.rounds] == [2, 2, 2]
    (line,) = [line for line in watcher.lines if "no inner step for" in line]
    assert "it is in 'waiting'" in line
