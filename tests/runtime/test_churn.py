"""Real processes killed, stopped and cut off at random moments (`benchmarks/churn`)."""

import pytest
from helpers.repository import ROOT


@pytest.fixture
def churn(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import churn

    return churn


def test_members_die_and_are_replaced_during_operations(churn) -> None:
    """One outcome an operation, whole sums, unchanged inputs, nothing kept."""
    report = churn.churn(16, seed=3, silence=1.0, members=3)
    assert not report.violations, report
    assert sum(report.fired.values()) >= 4, report


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [11, 12])
def test_members_come_and_go_during_two_hundred_operations(churn, seed: int) -> None:
    report = churn.churn(200, seed=seed, members=2 + seed % 4)
    assert not report.violations, report
    assert sum(report.fired.values()) > 90, report
    assert {"kill", "stop", "cut all", "coordinator"} <= set(report.fired), report
    assert report.in_flight > 20, report
    assert report.said["aborted"] > 50, report


def test_a_wrong_member_does_not_go_unnoticed(churn, tmp_path) -> None:
    """The checks of a run, on what it must never hear."""
    injector = churn.Injector(10, 1, 60.0, 1.0, 2)
    member = churn.Member("m0", None, "m0.0")
    injector._began[4] = 0.0
    injector._hear_done(member, {"op": 4, "epoch": 1, "digest": "aa"})
    injector._hear_done(member, {"op": 4, "epoch": 1, "digest": "aa"})
    assert not injector.report.violations
    for other in ({"epoch": 2, "digest": "aa"}, {"epoch": 1, "digest": "bb"}):
        injector._hear_done(member, {"op": 4, **other})
        assert "operation 4" in injector.report.violations.pop()
    injector._hear_wrong(member, {"why": "another sum"})
    assert injector.report.violations == ["m0.0: another sum"]


def test_operands_tell_who_is_in_a_sum(churn) -> None:
    import churn_member
    import numpy as np

    for number in range(12):
        parts = [churn_member.operand([name], number) for name in "abc"]
        whole = churn_member.operand("abc", number)
        assert np.array_equal(sum(parts), whole)
        assert not np.array_equal(parts[0] + parts[1] + parts[1], whole)
