"""Learners on own clocks that hang: their process ends."""

from helpers.simulation.pure_run import World

from pcp.training.coordinator.events import Received
from pcp.training.coordinator.guards.progress_guard import LEAST_SECONDS
from pcp.training.wire.messages import (
    Heartbeat,
    LeaseGrant,
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
