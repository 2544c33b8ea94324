"""Learners on own clocks that hang: their process ends."""

from helpers.simulation.pure_run import World

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


def is_told_to_end(world: World, name: str) -> bool:
    """Whether a learner's process is to end."""
    return any(isinstance(m, Stalled) for m in world.peers[name].told)


def pushes(world: World, name: str) -> None:
    """A learner has made the steps of its lease."""
    lease = next(m for m in world.peers[name].told if isinstance(m, LeaseGrant))
    world.says(name, Push(turn=lease.turn, seconds=1.0))


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


def test_of_several_holders_another_one_is_asked_where_one_cannot_be_reached() -> None:
    """Who holds the newest state, as the ledger has it, may hang before it takes it."""
    world = World("a", "b", "c", policy="own clocks")
    world.tick()
    for name in "ab":
        pushes(world, name)
    world.tick()
    for name in "ab":
        world.prepares(name)
    assert world.committed == 1
    asked = []
    for _ in range(8):
        pushes(world, "c")
        world.tick(0.5)
        order = world.peers["c"].order
        asked.append(order.source)
        lacks = {"reason": "rank 0 cannot fetch the newest state", "lost": []}
        world.says("c", GroupFailed(round=2, epoch=order.epoch, **lacks))
        for _ in range(5):
            world.tick(0.5)
    assert asked[:4] == ["a:1", "b:1", "a:1", "b:1"]
    assert {"a", "b"} - set(world.run.state.roster), "none of them hands it out"
