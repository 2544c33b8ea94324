"""The next attempt of a round: who is in it, on which samples, the how manieth."""

from pcp.training.coordinator.attempt import Attempt
from pcp.training.wire.messages import (
    InnerExchangeReport,
    Prepared,
    Whereabouts,
)
from pcp.training.worker.whereabouts import Call

LEASES = {"a": [(0, 4)], "b": [(4, 8)]}
PREPARED = Prepared(
    round=3,
    epoch=1,
    digest="0" * 64,
    loss=1.0,
    loss_first=1.0,
    steps=1,
    tokens=4,
    bytes_sent=0,
    bytes_received=0,
    compute_seconds=1.0,
    exchange_seconds=0.0,
)


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


def at(call: Call) -> Whereabouts:
    """A member whose thread is there."""
    return Whereabouts(call=call, steps=1, since=5.0)


def test_a_member_lags_where_all_that_it_could_wait_for_are_further() -> None:
    attempt = Attempt(3, 1, ["a", "b"], dict(LEASES), began=0.0)
    assert not attempt.lags("a", at("forming"))
    assert not attempt.lags("a", at("exchange"))
    attempt.computed["b"] = 1.0
    assert attempt.lags("a", at("forming")), "the group was formed long ago"
    assert not attempt.lags("a", at("exchange"))
    attempt.prepared["b"] = PREPARED
    assert attempt.lags("a", at("exchange"))
    assert not attempt.lags("a", at("step")), "it waits for nobody"
    assert not attempt.lags("a", None)


def test_a_member_that_is_alone_in_its_group_has_nobody_to_wait_for() -> None:
    attempt = Attempt(3, 1, ["a"], dict(LEASES), began=0.0)
    assert attempt.lags("a", at("forming"))
    assert attempt.lags("a", at("exchange"))


def test_a_member_lags_where_it_waits_by_an_order_before() -> None:
    attempt = Attempt(3, 2, ["a", "b"], dict(LEASES), began=0.0)
    said = InnerExchangeReport(round=3, epoch=2, entered=0, waits=5.0)
    attempt.straggler_detection.heard("a", said, 1.0)
    assert not attempt.lags("a", at("forming"))
    attempt.straggler_detection.heard("a", None, 2.0)
    assert attempt.lags("a", at("forming"))


def test_members_that_said_nothing_are_counted_from_attempt_to_attempt() -> None:
    attempt = Attempt(3, 1, ["a", "b"], dict(LEASES), began=0.0)
    attempt.reported.add("a")
    assert attempt.silent() == {"b": 1}
    again = attempt.again(2)
    assert again.silent() == {"a": 1, "b": 2}
    again.computed["b"] = 1.0
    assert again.silent() == {"a": 1}
    assert again.again(3, without=["a"]).silent() == {"b": 1}, "another group"
