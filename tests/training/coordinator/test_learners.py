"""Learners on own clocks that hang or cannot be reached: their process ends."""

from helpers.simulation.pure_run import World

from pcp.training.coordinator.asynchronous_rounds import _FETCHES
from pcp.training.coordinator.events import Received
from pcp.training.coordinator.guards.progress_guard import LEAST_SECONDS
from pcp.training.wire.messages import (
    GroupFailed,
    Heartbeat,
    LeaseGrant,
    Push,
    Stalled,
    Whereabouts,
)
from pcp.training.worker.whereabouts import Call


def learners() -> World:
    """Two of them, each with a lease."""
    world = World("a", "b", policy="own clocks")
    world.tick()
    for peer in world.peers.values():
        assert isinstance(peer.told[-1], LeaseGrant)
    return world


def pushes(world: World, name: str) -> None:
    """A learner has made the steps of its lease."""
    grant = next(
        m for m in reversed(world.peers[name].told) if isinstance(m, LeaseGrant)
    )
    world.says(name, Push(turn=grant.turn, seconds=1.0))


def is_told_to_end(world: World, name: str) -> bool:
    """Whether a learner's process is to end."""
    return any(isinstance(m, Stalled) for m in world.peers[name].told)


def lives(world: World, name: str, call: Call, steps: int, since: float) -> None:
    """A learner says where its thread is."""
    at = Whereabouts(call=call, steps=steps, since=since)
    world.step(Received(world.peers[name], Heartbeat(at=at)))


def test_an_exchange_from_before_a_lease_is_no_progress() -> None:
    """The learner hung in it under the shepherd before; drawn schedules found it."""
    world, told = learners(), []
    for turn in range(40):
        lives(world, "a", "exchange", 4, 60.0 + turn / 2)
        lives(world, "b", "step", turn, 0.0)
        world.tick(0.5)
        if is_told_to_end(world, "a"):
            told.append(turn / 2)
    assert LEAST_SECONDS - 1 < told[0] < LEAST_SECONDS + 1
    assert not is_told_to_end(world, "b")


def test_a_holder_that_no_learner_reaches_ends() -> None:
    """Only removed, it would dial again, for ever; drawn schedules found it."""
    world = learners()
    pushes(world, "a")
    world.tick()
    world.prepares("a")
    assert world.committed == 1
    pushes(world, "b")
    failed = 0
    for _ in range(100):
        world.tick(0.5)
        attempt = world.run.rounds.attempt if world.run.rounds else None
        if attempt is not None and attempt.members == ["b"] and not attempt.reported:
            order = world.peers["b"].order
            assert order.source == "a:1"
            why = "cannot fetch the newest state"
            failure = GroupFailed(round=order.round, epoch=order.epoch, reason=why)
            world.says("b", failure)
            failed += 1
    assert is_told_to_end(world, "a")
    assert failed == _FETCHES + 1
