"""The next attempt of a round: who is in it, on which samples, the how manieth."""

from pcp.training.coordinator.attempt import Attempt

LEASES = {"a": [(0, 4)], "b": [(4, 8)]}


def test_only_the_same_members_again_is_a_retry() -> None:
    first = Attempt(3, 1, ["a", "b"], dict(LEASES), began=0.0)
    again = first.again(2)
    assert (again.members, again.leases, again.retries) == (["a", "b"], LEASES, 1)
    fewer = again.again(3, without=["a"])
    assert (fewer.members, fewer.leases) == (["b"], {"b": [(4, 8)]})
    more = fewer.again(4, joining={"c": [(8, 12)]})
    assert more.leases == {"b": [(4, 8)], "c": [(8, 12)]}
    assert more.members == ["b", "c"]
    assert [fewer.retries, more.retries, more.again(5).retries] == [1, 1, 2]
    assert not again.again(3).first
