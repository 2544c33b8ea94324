"""Slow members of rounds in which all meet: who holds up whom, and what is done."""

import math
import threading

import numpy as np
import pytest
from helpers.models.closed_form import bundle
from helpers.worlds.training_cluster import Crew, slowly, stepping
from helpers.worlds.training_runs import experiment, order

from pcp.training.coordinator.straggler_detection import StragglerDetection
from pcp.training.wire.messages import (
    AwaitedRanks,
    InnerExchangeReport,
)

NAMES = ("a", "b", "c")


def at(entered: int, waits: float | None) -> InnerExchangeReport:
    return InnerExchangeReport(round=1, epoch=1, entered=entered, waits=waits)


def slow(
    waits: StragglerDetection, quorum=None, grace=0.0, earliest=0.0, deadline=math.inf
):
    return waits.stragglers(NAMES, quorum, grace, earliest, deadline)


class Unsearched(list[str]):
    """Members by rank, whose list nobody goes through for each of them."""

    def __contains__(self, name: object) -> bool:
        raise AssertionError(f"{name} is searched for among all members")


def test_no_member_is_searched_for_among_all() -> None:
    """Thousands of them report, and a tick looks at all reports."""
    waits, members = StragglerDetection(), Unsearched(NAMES)
    for name in NAMES:
        awaits = AwaitedRanks(ranks=[2], seconds=9.0) if name != "c" else None
        report = InnerExchangeReport(round=1, epoch=1, entered=0, awaits=awaits)
        waits.heard(name, report, 1.0)
    assert waits.awaited(members) == []
    assert waits.lacked(members, dict.fromkeys(NAMES, 1.0)) == {"c": {"a", "b"}}
    assert waits.stragglers(members, 2, 0.0, 0.0, math.inf) == []


def test_only_a_report_from_after_the_grace_counts() -> None:
    waits = StragglerDetection()
    waits.heard("a", at(3, 0.2), 10.0)  # waits since 9.8
    waits.heard("b", at(3, 0.1), 10.1)  # since 10.0
    waits.heard("c", at(2, None), 10.2)
    assert slow(waits, quorum=2, grace=0.5) == []
    waits.heard("c", at(2, None), 10.6)
    assert slow(waits, quorum=2, grace=0.5) == ["c"]
    assert slow(waits, quorum=3, grace=0.5) == []
    assert slow(waits, quorum=2, grace=0.5, earliest=11.0) == []
    waits.heard("c", at(3, 0.0), 10.7)
    assert slow(waits, quorum=2, grace=0.5) == []


def test_a_deadline_asks_for_no_quorum_but_for_somebody_who_waits() -> None:
    waits = StragglerDetection()
    for name in NAMES:
        waits.heard(name, at(3, None), 20.0)
    assert slow(waits, deadline=15.0) == []  # all of them compute
    waits.heard("a", at(4, 0.1), 20.1)
    assert slow(waits, deadline=15.0) == ["b", "c"]
    assert slow(waits, deadline=20.05) == []


def test_who_is_somewhere_else_is_behind_those_who_form_the_group() -> None:
    waits = StragglerDetection()
    waits.heard("a", at(0, 2.0), 10.0)
    waits.heard("b", None, 10.0)
    assert slow(waits, quorum=1, grace=1.0) == ["b"]


def test_who_is_not_at_the_round_while_others_form_its_group_is_awaited() -> None:
    waits = StragglerDetection()
    waits.heard("a", at(0, 2.0), 10.0)
    waits.heard("b", None, 10.0, begun=False)
    waits.heard("c", None, 10.0, begun=True)
    assert waits.awaited(NAMES) == ["b"]
    waits.heard("a", at(1, None), 11.0)
    assert waits.awaited(NAMES) == [], "the group is formed"


def said(*ranks: int, seconds: float = 12.0) -> InnerExchangeReport:
    """Waits for these ranks, that long."""
    awaits = AwaitedRanks(ranks=[*ranks], seconds=seconds)
    return at(0, seconds).model_copy(update={"awaits": awaits})


def lacked(*reports: InnerExchangeReport | None) -> dict[str, set[str]]:
    """Of members a, b, c, ... that say this, each of which may be late for 10 s."""
    names, waits = "abcdefg"[: len(reports)], StragglerDetection()
    for name, report in zip(names, reports, strict=True):
        waits.heard(name, report, 0.0)
    return waits.lacked([*names], dict.fromkeys(names, 10.0))


def test_whom_most_of_the_others_lack_for_long_enough_is_known() -> None:
    here = at(0, 12.0)
    assert lacked(said(2), said(2), here) == {"c": {"a", "b"}}
    assert lacked(said(1), here) == {"b": {"a"}}
    assert lacked(said(2, seconds=9.9), said(2, seconds=9.9), here) == {}
    assert lacked(said(1, 2), here, here) == {}, "one of two is not most"
    two = said(2, 3)
    assert lacked(two, two, here, here) == {"c": {"a", "b"}, "d": {"a", "b"}}
    assert lacked(here, here, None) == {}


def test_one_that_accuses_unseats_nobody() -> None:
    assert lacked(said(1), said(), said()) == {}
    assert lacked(said(1), said(0), said(0), at(0, 12.0)) == {"a": {"b", "c"}}
    assert lacked(said(7), said(0, 1)) == {"a": {"b"}}, "no rank, and itself"


def test_who_waits_for_one_that_hangs_is_not_taken_for_it() -> None:
    """Rank 3 has connected to some only: they are in a call that others await."""
    found = lacked(said(1, 2, 3), said(3), said(3), at(0, 12.0))
    assert found == {"d": {"a", "b", "c"}}


def test_who_is_in_no_call_where_others_are_is_alone() -> None:
    waits = StragglerDetection()
    alone = at(0, 12.0).model_copy(update={"alone": 12.0})
    for name, report in (("a", said()), ("b", alone), ("c", None)):
        waits.heard(name, report, 0.0)
    assert [waits.alone(name) for name in "abcd"] == [0.0, 12.0, 0.0, 0.0]


STREAMING = "streaming_diloco{fragments=2,wire=f32}"
SLOPES = "mezo{eps=0.0625,noise=signs}"


@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        ("ddp", {"quorum": 2, "grace_seconds": 0.3}),
        pytest.param(
            "ddp",
            {"round_deadline_seconds": 0.8},
            marks=pytest.mark.slow,
            id="limit",
        ),
        pytest.param(
            STREAMING, {"quorum": 2, "grace_seconds": 0.3}, marks=pytest.mark.slow
        ),
        pytest.param(
            SLOPES, {"quorum": 2, "grace_seconds": 0.3}, marks=pytest.mark.slow
        ),
    ],
)
def test_a_member_that_holds_the_others_up_is_left_out(tmp_path, algorithm, keys):
    """Its share is the others', who do not wait for it; then it takes part again."""
    content = bundle("quadratic", algorithm).to_bytes()
    more = {"vocabulary_size": 128, "tau": 3, "outer_loop_steps": 1000}
    beats = {"heartbeat_seconds": 0.1, "heartbeat_limit_seconds": 6.0}
    exp = experiment(tmp_path, max_epochs=1000, **more, **beats, **keys)
    left_out = threading.Event()
    held = stepping(lambda number: number == 5 and left_out.wait(60))
    crew = Crew(exp, tmp_path / "run", content, 3, [slowly(0.03), slowly(0.03), held])
    crew.wait(lambda: 2 in crew.sizes())
    assert any("is left out" in line for line in crew.watcher.lines)
    left_out.set()
    alone = len(crew.sizes())
    crew.wait(lambda: 3 in crew.sizes()[alone:])
    order(crew.shepherd, "cancel")
    saved = crew.finish(why="the run is cancelled by the operator")
    assert 3 in crew.sizes()[alone:], "it takes part again"
    assert all(np.isfinite(x).all() for x in saved.parameters.values())
