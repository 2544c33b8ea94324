"""Orders name the distance of their members, by what these have measured."""

from helpers.simulation.pure_run import Peer, World, hello

from pcp.training.coordinator.roster import Member, distance_of


def _member(name: str, **changes: float) -> Member:
    said = hello(name).model_copy(update=changes)
    return Member(connection=Peer(name), hello=said, index=0, seen=0.0)


def test_the_farthest_and_the_slowest_count() -> None:
    near, far = _member("a"), _member("b", round_trip=0.0804)
    assert distance_of([near]) is None
    assert distance_of([near, far]) == (0.08, 0.0)  # by its way to the shepherd
    near.bandwidth, far.bandwidth = 2e6, 1e6 + 0.4
    assert distance_of([near, far]) == (0.08, 1e6)
    assert distance_of([_member("c", round_trip=0.004)]) is None


def test_what_a_group_measures_stands_in_the_next_order_and_in_the_ledger() -> None:
    world = World("a", "b")
    far = {"round_trip": 0.1, "bytes_sent": 1000, "exchange_seconds": 0.5}
    for told in ({}, far):
        world.tick()
        assert all(peer.order.distance is None for peer in world.peers.values())
        for name in "ab":
            world.computes(name)
        for name in "ab":
            world.prepares(name, **told)
    world.tick()
    assert all(peer.order.distance == (0.1, 2000) for peer in world.peers.values())
    orders = [line for line in world.ledger if line["kind"] == "round"]
    assert [line.get("distance") for line in orders] == [None, None, [0.1, 2000]]
