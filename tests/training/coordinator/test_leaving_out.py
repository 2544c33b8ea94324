"""A round goes on without a member that others wait for and that does nothing."""

import math

import pytest
from helpers.simulation.pure_run import BEAT, Crew

from pcp.training.coordinator.events import Tick
from pcp.training.coordinator.guards.progress_guard import (
    LEAST_SECONDS,
    LEAVE_SECONDS,
)
from pcp.training.coordinator.roster import READY, RESTORING
from pcp.training.wire.messages import (
    Heartbeat,
    Restore,
    Whereabouts,
)


def left_out(crew: Crew, idle: str, call: str, seconds: float) -> float | None:
    """When `idle` is left out, if others lack it; it is in a call, and moves not."""
    for _ in range(int(seconds / BEAT)):
        crew.now += BEAT
        for name in "abc":
            others = name != idle
            crew.beats(name, "forming" if others else call, idle if others else "")
        crew.step(Tick())
        if idle not in crew.members:
            return crew.now - crew.since
    return None


@pytest.mark.parametrize("call", ["waiting", "step", "forming", "exchange"])
def test_a_round_goes_on_without_who_idles_before_it_is_ended(call: str) -> None:
    crew = Crew(*"abc")
    when = left_out(crew, "b", call, 20.0)
    assert when == pytest.approx(LEAVE_SECONDS, abs=2 * BEAT)
    assert "b" in crew.run.state.roster
    assert "b" not in crew.run.state.progress.outstanding
    for name in "ac":
        crew.computes(name)
    for name in "ac":
        crew.prepares(name)
    assert crew.committed == 3
    while "b" in crew.run.state.roster and crew.now < crew.since + 30.0:
        crew.now += BEAT
        crew.beats("b", call)
        for name in "ac":
            crew.beats(name, "step", steps=int(crew.now / BEAT))
        crew.step(Tick())
        assert "b" not in crew.members
    assert crew.now - crew.since <= LEAVE_SECONDS + LEAST_SECONDS + 3 * BEAT
    assert crew.said("worker 1 at b:1 left: no inner step for")


def validating(crew: Crew, name: str, steps: int = 7) -> None:
    """A member evaluates held-out batches, and has not begun with its order."""
    at = Whereabouts(call="validating", steps=steps, since=crew.now - crew.since)
    crew.says(name, Heartbeat(at=at))


def test_rounds_go_on_without_who_hangs_where_it_validates() -> None:
    """Before the minute is over for which its program may have to be loaded."""
    crew, rounds = Crew(*"abc"), 0
    while crew.now < crew.since + 40.0:
        crew.now += BEAT
        validating(crew, "b")
        for name in "ac":
            crew.beats(name, "forming", "b" if "b" in crew.members else "")
        crew.step(Tick())
        if crew.members == ["a", "c"]:
            for act in (crew.computes, crew.prepares):
                act("a")
                act("c")
            rounds += 1
        assert "b" in crew.members or crew.now - crew.since > LEAST_SECONDS
        assert "b" not in crew.members or not rounds, "it is away until it moves"
    assert rounds > 20
    validating(crew, "b", steps=8)
    crew.step(Tick())
    assert "b" in crew.members


def test_who_gets_on_where_it_validates_is_waited_for() -> None:
    crew = Crew(*"abc")
    for made in range(160):
        crew.now += BEAT
        validating(crew, "b", steps=7 + made // 30)
        for name in "ac":
            crew.beats(name, "forming", "b")
        crew.step(Tick())
        assert "b" in crew.members


def test_who_makes_steps_is_waited_for() -> None:
    crew = Crew(*"abc")
    for made in range(80):
        crew.now += BEAT
        crew.beats("a", "exchange", "b")
        crew.beats("c", "exchange", "b")
        crew.beats("b", "step", steps=8 + made)
        crew.step(Tick())
        assert "b" in crew.members


def test_who_may_have_a_program_to_compile_is_waited_for() -> None:
    """Nobody knows yet what a step of it takes."""
    crew = Crew(*"abc")
    crew.run.state.roster["b"].pace.usual = None
    assert left_out(crew, "b", "step", 30.0) is None


def test_others_fetch_the_state_from_the_only_holder_if_it_idles() -> None:
    """It may not bring them up to date in a group, and nothing is lost by that."""
    crew = Crew(*"abc")
    for name in "ac":
        crew.run.state.roster[name].committed = 1  # they were to catch up in the group
    assert left_out(crew, "b", "waiting", 20.0) is not None
    crew.step(Tick())
    told = [m for n in "ac" for m in crew.peers[n].told[-1:]]
    assert [m.source for m in told if isinstance(m, Restore)] == ["b:1", "b:1"]
    states = [crew.run.state.roster[name].state for name in "abc"]
    assert states == [RESTORING, READY, RESTORING]
    assert not any(line["kind"] == "rewind" for line in crew.ledger)


def said_that_it_is_not_finite() -> Crew:
    """Member c waits for the others, to know whose step was the first bad one."""
    crew = Crew(*"abc", policy="every step")
    crew.computes("c", loss=math.nan, nonfinite_step=1)
    return crew


def passes(crew: Crew) -> None:
    """Time in which c does what it was told to do."""
    crew.now += BEAT
    waits = Whereabouts(call="waiting", steps=7, since=crew.now - crew.since)
    crew.says("c", Heartbeat(at=waits))
    crew.step(Tick())


def test_who_said_that_its_part_may_not_count_does_not_hang() -> None:
    crew = said_that_it_is_not_finite()
    for made in range(80):
        passes(crew)
        crew.beats("a", "exchange", "bc")
        crew.beats("b", "step", steps=8 + made)
        assert crew.members == ["a", "b", "c"]
    for name in "ab":
        crew.computes(name)
    assert crew.members == ["a", "b"]


def test_who_said_so_is_one_of_those_that_wait_for_one_that_hangs() -> None:
    """Of two others one waits in a call: alone it would not be most of them."""
    crew = said_that_it_is_not_finite()
    while "b" in crew.members and crew.now < crew.since + 30.0:
        passes(crew)
        crew.beats("a", "exchange", "bc")
        crew.beats("b", "exchange")
    assert crew.now - crew.since == pytest.approx(LEAVE_SECONDS, abs=2 * BEAT)
    assert crew.members == ["a", "c"]
