"""Members that say, of others who work, that they wait for them: in vain.

A liar says whatever the protocol has words for: that it is in a call, that all others
lack in it, for as long as it likes; that an exchange failed, and by whom. The others do
what they do in a phase of a round. Nobody of them may be ended or left out by it.
"""

from collections.abc import Callable

import pytest
from helpers.simulation.pure_run import BEAT, Crew

from pcp.training.coordinator.events import Tick
from pcp.training.wire.messages import (
    AwaitedRanks,
    GroupFailed,
    Heartbeat,
    InnerExchangeReport,
    Stalled,
    Whereabouts,
)

NAMES = "abcde"
AGES = 1e6
"""Seconds that a liar says it has waited."""


def accuses(crew: Crew, liar: str, honest: str) -> None:
    """It is in a call, and these have not come, as it says."""
    order = crew.peers[liar].order
    ranks = [crew.members.index(name) for name in honest if name in crew.members]
    meeting = InnerExchangeReport(
        round=order.round,
        epoch=order.epoch,
        entered=1000,
        waits=AGES,
        awaits=AwaitedRanks(ranks=ranks, seconds=AGES),
    )
    at = Whereabouts(call="exchange", steps=7, since=0.0)
    crew.says(liar, Heartbeat(at=at, meeting=meeting))


def fails(crew: Crew, liar: str, honest: str) -> None:
    """Its exchange failed by these, as it says."""
    accuses(crew, liar, honest)
    order = crew.peers[liar].order
    ranks = [crew.members.index(name) for name in honest if name in crew.members]
    failed = {"round": order.round, "epoch": order.epoch, "reason": "no answer"}
    crew.says(liar, GroupFailed(**failed, lost=ranks))


def steps(crew: Crew, name: str) -> None:
    """It makes a step in each second."""
    crew.beats(name, "step", steps=int(crew.now))


def waits(crew: Crew, name: str) -> None:
    """It waits in the exchange for the liars, which do not come to it."""
    crew.beats(name, "exchange", lacks=crew.liars)


def forms(crew: Crew, name: str) -> None:
    """It waits where the group is formed, likewise."""
    crew.beats(name, "forming", lacks=crew.liars)


def sums(crew: Crew, name: str) -> None:
    """The work of its outer step, in no call, takes half a minute."""
    crew.beats(name, "exchange")


def fetches(crew: Crew, name: str) -> None:
    """It takes a large state on its way to the group."""
    crew.beats(name, "restoring")


PHASES = [steps, waits, forms, sums, fetches]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("lie", [accuses, fails])
@pytest.mark.parametrize("liars", ["e", "de"])
def test_whom_a_few_accuse_is_neither_ended_nor_left_out(
    phase: Callable[[Crew, str], None], lie: Callable[..., None], liars: str
) -> None:
    crew = Crew(*NAMES)
    crew.liars = liars
    honest = [name for name in NAMES if name not in liars]
    for _ in range(int(30.0 / BEAT)):
        crew.now += BEAT
        for name in honest:
            if name in crew.members:
                phase(crew, name)
        for liar in liars:
            if liar in crew.members:
                lie(crew, liar, "".join(honest))
        crew.step(Tick())
        if not {*liars} & {*crew.members}:
            break
        assert {*honest} <= {*crew.members}, crew.lines[-3:]
    told = [m for name in honest for m in crew.peers[name].told]
    assert not [m for m in told if isinstance(m, Stalled)], crew.lines[-3:]


@pytest.mark.parametrize("phase", [waits, forms])
def test_who_says_that_it_waits_and_is_waited_for_goes(phase) -> None:
    """A liar does not hold a round up for ever: those that wait say that they fail."""
    crew = Crew(*NAMES)
    crew.liars = "e"
    for turn in range(int(90.0 / BEAT)):
        crew.now += BEAT
        for name in "abcd":
            phase(crew, name)
            if turn % 40 == 39:  # as after each exchange that is given up
                fails(crew, name, "e")
        if "e" in crew.members:
            accuses(crew, "e", "abcd")
        crew.step(Tick())
        if "e" not in crew.run.state.roster:
            break
    assert sorted(crew.members) == [*"abcd"]
    assert crew.said("left: its peers cannot reach it") or crew.said("in vain")
