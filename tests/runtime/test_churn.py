"""Real processes killed, stopped and cut off at random moments (`benchmarks/churn`)."""

import threading

import pytest
from helpers.repository.sources import ROOT

from pcp.runtime.communicator.param_sync import SyncReport


@pytest.fixture
def churn(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import churn

    return churn


@pytest.mark.slow  # it runs the checks below on processes
def test_members_die_and_are_replaced_during_operations(churn) -> None:
    """One outcome an operation, whole sums, unchanged inputs, nothing kept."""
    report = churn.churn(8, seed=3, silence=1.0, members=3)
    assert not report.violations, report
    # Of 7 drawn; a fast machine has made the operations before the moments of most.
    assert report.fired, report


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


def test_a_wrong_member_does_not_go_unnoticed(churn) -> None:
    """The checks of a run, on what it must never hear."""
    injector = churn.Injector(10, 1, 60.0, 1.0, 2)
    member = churn.Member("m0", None, "m0.0")
    for epoch in (1, 2):
        injector.ledger.begin(epoch, ["m0.0", "m1.0"])
    injector._began[4] = 0.0
    injector._hear_done(member, {"op": 4, "epoch": 1, "digest": "aa"})
    injector._hear_done(member, {"op": 4, "epoch": 1, "digest": "aa"})
    assert not injector.report.violations
    for other in ({"epoch": 2, "digest": "aa"}, {"epoch": 1, "digest": "bb"}):
        injector._hear_done(member, {"op": 4, **other})
        assert "operation 4" in injector.report.violations[0]
        injector.report.violations.clear()
    injector._hear_wrong(member, {"why": "another sum"})
    assert injector.report.violations == ["m0.0: another sum"]


def test_an_operation_is_done_again_only_if_nobody_survived_who_must_know(
    churn,
) -> None:
    ledger = churn.Ledger()
    for epoch, names in enumerate((["a.0", "b.0"], ["b.0", "c.0", "d.0"], ["c.0"]), 1):
        assert ledger.begin(epoch, names) is None
    assert "epoch 3 has members" in str(ledger.begin(3, ["d.0"]))
    assert ledger.finish(7, "a.0", 1, "aa") is None
    # b came into epoch 2, but was lost before anybody there had its state.
    assert ledger.heirs(1, 3) == []
    assert ledger.finish(7, "c.0", 3, "cc") is None
    # Who joins anew may have been taken for dead before it knew.
    ledger.begin(4, ["b.1", "a.1"])
    assert ledger.finish(7, "b.1", 4, "bb") is None
    # In epoch 2 c got the state of b, who was never taken for dead.
    ledger.agree(2, "c.0")
    assert ledger.heirs(1, 3) == ["c.0"]
    assert "again in epoch 3, where c.0" in str(ledger.finish(7, "a.0", 1, "aa"))
    assert ledger.anew == 2
    assert ledger.heirs(1, 2) == ["b.0"]
    assert "again in epoch 2, where b.0" in str(ledger.finish(7, "d.0", 2, "dd"))


def test_an_operation_is_done_on_all_survivors_of_its_epoch_or_on_none(churn) -> None:
    ledger = churn.Ledger()
    ledger.begin(1, ["a.0", "b.0", "c.0"])
    ledger.finish(7, "a.0", 1, "aa")
    ledger.abort(7, "b.0", 1)
    ledger.abort(7, "c.0", 1)
    ledger.abort(8, "b.0", 1)
    ledger.begin(2, ["b.1"])  # both were taken for dead
    assert ledger.split() == []
    ledger.begin(3, ["b.1", "c.0"])
    report = churn.Report(10)
    report.judge(ledger)
    assert report.violations == [
        "operation 7 was done in epoch 1, but not on c.0, which survived it"
    ]


def test_who_hangs_alone_is_found_while_the_others_go_on(churn, monkeypatch) -> None:
    injector = churn.Injector(10, 1, 60.0, 1.0, 2)
    monkeypatch.setattr(churn.time, "sleep", lambda _: None)

    class Child:
        class popen:
            send_signal = staticmethod(lambda _: None)

    quiet, stopped, busy = (
        churn.Member(f"m{i}", Child, f"m{i}.0", heard=heard)
        for i, heard in enumerate((-1e9, -1e9, float("inf")))
    )
    stopped.stopped = True
    injector.members = [stopped, busy]
    injector._look_for_silent()
    assert not injector.report.violations
    injector.members.append(quiet)
    injector._look_for_silent()
    assert injector.report.violations == ["m0.0 said nothing for 130 s"]


def test_who_joins_anew_may_have_other_state_and_who_stayed_may_not(
    churn, monkeypatch
) -> None:
    """Taken for dead in the epoch that the others come from, it lacks what they did."""
    import churn_member

    class Comm:
        epoch = 5

        def param_sync(self, tensors, **how):
            return SyncReport(0, 0, ("done", "sums", "weights"), 0)

    said: list[str] = []
    monkeypatch.setattr(churn_member, "wrong", said.append)
    state = churn_member.State(4)
    state.arrays["epoch"][0] = 4  # in which b.0 was lost to the others
    job = churn_member.Job("a:1", "b", operations=4, window=1, silence=1.0, limit=1.0)
    member = churn_member.Member(job, "b.1", state, threading.Event())
    member.agree(Comm())
    assert not said
    member.agree(Comm())
    assert said == ["in epoch 5 it had other ('done', 'sums', 'weights')"]


def test_operands_tell_who_is_in_a_sum(churn) -> None:
    import churn_member
    import numpy as np

    for number in range(12):
        parts = [churn_member.operand([name], number) for name in "abc"]
        whole = churn_member.operand("abc", number)
        assert np.array_equal(sum(parts), whole)
        assert not np.array_equal(parts[0] + parts[1] + parts[1], whole)
