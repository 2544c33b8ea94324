"""An island is where its least far rank is: else it is ended for another's hang."""

from typing import Any

import pytest
from helpers.simulation.pure_run import PREPARED
from helpers.simulation.run_schedules import Schedule

from pcp.training.coordinator.island import Island
from pcp.training.coordinator.island_formation import Rank
from pcp.training.wire.message import VERSION
from pcp.training.wire.messages import (
    AwaitedRanks,
    Heartbeat,
    Hello,
    InnerExchangeReport,
    RoundStart,
    Whereabouts,
)
from pcp.training.worker.whereabouts import Call


@pytest.fixture
def ranks() -> list[Rank]:
    """Two, which wait for an island."""
    made = []
    for at in range(2):
        hello = Hello(
            version=VERSION,
            worker=f"w{at}",
            target="cpu",
            backend="cpu",
            device="none",
            address=f"10.0.0.1:{at}",
        )
        connection: Any = object()
        made.append(Rank(connection, hello, since=0.0, seen=0.0))
    return made


def beat(call: Call, steps: int = 7, awaits: int | None = None) -> Heartbeat:
    """Of a rank in round 1 that is in a call for 9 s, and waits there for another."""
    at = Whereabouts(call=call, steps=steps, since=9.0)
    if call == "waiting":
        return Heartbeat(at=at)
    late = None if awaits is None else AwaitedRanks(ranks=[awaits], seconds=9.0)
    entered = call != "forming"
    meeting = InnerExchangeReport(round=1, epoch=1, entered=entered, awaits=late)
    return Heartbeat(meeting=meeting, at=at)


def heard(island: Island, *beats: Heartbeat) -> Heartbeat:
    """What the island says once all its ranks have beaten."""
    pairs = zip(island.ranks, beats, strict=True)
    *early, said = [island.says(rank, each) for rank, each in pairs]
    assert early == [None] * (len(beats) - 1)
    assert isinstance(said, Heartbeat)
    return said


def test_a_rank_in_a_step_waits_for_the_one_that_forms_with_others(
    ranks: list[Rank],
) -> None:
    """The island waits for whom that one waits: not for itself."""
    forms = beat("forming", awaits=1)
    assert heard(Island("w0", ranks), beat("step"), forms) == forms
    rests = beat("waiting")
    assert heard(Island("w0", ranks), beat("step"), rests) == rests, "it hangs"


def test_steps_of_an_island_are_those_that_all_processes_have_made(
    ranks: list[Rank],
) -> None:
    """A newcomer's process has made few: those of one after the other's are no step."""
    said = heard(Island("w0", ranks), beat("forming", 90), beat("step", 3))
    assert said == beat("forming", 3)


def test_a_rank_that_has_prepared_the_round_is_not_where_its_island_is(
    ranks: list[Rank],
) -> None:
    island = Island("w0", ranks)
    island.order = RoundStart(
        round=1, epoch=1, members=["a", "b"], rank=0, lease=[(0, 8)], steps=2, longest=2
    )
    beats = [beat("waiting"), beat("exchange", awaits=1)]
    assert heard(island, *beats) == beats[0], "rank 0 has not begun"
    assert island.says(ranks[0], PREPARED) is None
    assert heard(island, *beats) == beats[1]


def test_of_equal_ranks_the_island_is_where_one_is_for_longest(
    ranks: list[Rank],
) -> None:
    """Whichever beats first: else it would seem to move, and to come to a round."""
    island, beats = Island("w0", ranks), list[Heartbeat]()
    for since in (8.0, 9.0):
        at = Whereabouts(call="validating", steps=7, since=since)
        beats.append(Heartbeat(at=at))
    assert heard(island, *beats) == beats[1]
    assert island.says(ranks[1], beats[1]) is None
    assert island.says(ranks[0], beats[0]) == beats[1]


@pytest.mark.parametrize(
    "seed",
    [
        23,  # a rank waits in a step for one that forms with a hung rank
        253,  # a rank has prepared the round, another one waits for a hung rank
        131,  # of an island only one rank holds a round that the run went back from
        1592,  # so does an island of which the run knows an earlier round
        1583,  # a state cannot be fetched from an island with a hung rank
    ],
)
def test_no_honest_island_is_ended_for_another(seed: int) -> None:
    """Each was, in the schedule of this seed; `Wire` checks who is ended."""
    Schedule(seed, "together", 2).go()
