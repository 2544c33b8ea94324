"""Behind a restart: who holds the committed state, and who comes back."""

import pytest
from helpers.present import present
from helpers.simulation.pure_run import (
    Peer,
    World,
    handed_out,
    hello,
    no_answer,
)
from helpers.simulation.run_schedules import program

from pcp.training.coordinator.effects import Gather, Prove, Write
from pcp.training.coordinator.events import Compiled, Proved, Received
from pcp.training.coordinator.recovery import Recovery
from pcp.training.coordinator.roster import READY, Roster


def test_words_of_sockets_without_a_model_count_for_nothing() -> None:
    """Two that claim the right numbers commit a round, and nothing is built on it."""
    world = World("a", "b")
    world.answers = no_answer
    world.makes()
    assert world.committed == 1
    for _ in range(600):
        world.tick()
        assert not world.members, "no round begins on a state that nobody has shown"
        if not len(world.run.state.roster):
            break
    assert not len(world.run.state.roster)
    assert world.said("the state that it says it holds cannot be fetched")
    assert world.committed == 1, "who has it may still come back"


def test_one_member_shows_the_first_state_and_no_more_is_asked() -> None:
    world = World("a", "b", "c")
    for _ in range(9):
        world.makes()
    assert [effect.round for effect in _asked(world)] == [1]
    assert not any(isinstance(effect, Write | Gather) for effect in world.effects)


def _asked(world: World) -> list[Prove]:
    return [effect for effect in world.effects if isinstance(effect, Prove)]


def test_who_said_that_it_holds_the_round_is_asked_for_it_first() -> None:
    """One that prepared it under the last shepherd may hang before it adopts it."""
    world = World("a", "b", "c")
    world.answers = None
    world.makes()
    holds = {"run": "run", "committed": 1, "digest": "a" * 64}
    peer = world.peers["c"] = Peer("c")
    world.step(Received(peer, hello("c").model_copy(update=holds)))
    world.step(Compiled(peer, program("together")))
    world.tick()
    assert [effect.member for effect in _asked(world)] == ["c"]


def test_who_hands_out_its_state_before_those_that_were_asked_earlier_counts() -> None:
    world = World("a", "b", "c", "d")
    world.answers = None
    world.makes()
    for _ in range(40):  # a hung member is asked again for 10 s
        world.tick()
    assert [effect.member for effect in _asked(world)] == ["a", "b", "c"]
    assert not world.members
    world.step(Proved(1, "c"))
    world.tick()
    assert len(world.members) == 4
    world.step(Proved(1, "a", "it holds round 0, not 1", "a:1"))
    world.makes()
    assert world.committed == 2
    assert len(_asked(world)) == 3


def test_the_next_holder_is_asked_as_soon_as_one_has_handed_out_nothing() -> None:
    world = World("a", "b", "c")
    world.answers = lambda asked: (
        handed_out(asked) if asked.addresses[0] == "c:1" else no_answer(asked)
    )
    world.makes()
    for _ in range(4):
        world.tick()
    assert [effect.member for effect in _asked(world)] == ["a", "b", "c"]
    assert len(world.members) == 3


@pytest.mark.parametrize(
    ("slots", "waits"),
    [(("s1", "s2", "s1"), False), (("s1", "s2", "s3"), True), ((None,) * 3, True)],
)
def test_who_was_started_anew_is_not_waited_for_behind_a_restart(slots, waits) -> None:
    """The worker a had a lease; c is a new process, of its supervisor or of none."""
    rows = [
        {"worker": name, "index": index, "address": f"here:{index}"}
        | ({"supervisor": slot} if slot else {})
        for index, (name, slot) in enumerate(zip("ab", slots, strict=False))
    ]
    world = World("a", "b")
    world.tick()
    assert set(world.run.state.progress.outstanding) == {"a", "b"}
    state = world.run.state
    state.roster = Roster(rows)
    for place, (name, slot) in enumerate(zip("bc", slots[1:], strict=True)):
        said = hello(name).model_copy(
            update={"address": f"here:{5 + place}", "supervisor": slot}
        )
        state.roster.add(Peer(name), said, 0.0).state = READY
    recovery = Recovery(state, present(world.run.rounds))
    assert recovery.all_back() is not waits
    state.now = state.born + state.grace + 1.0
    assert recovery.all_back()
