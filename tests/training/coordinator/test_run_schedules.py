"""No drawn schedule of faults makes a run's state machine wrong, or stop.

Here `TrainingRun.step` alone is real, so many thousands of schedules take minutes;
`test_training_simulation.py` has the workers' and the shell's code too, in hundreds.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from helpers.simulation.run_schedules import Schedule, first_violation

from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.effects import Append, Effect
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.synchronous_rounds import SynchronousRounds
from pcp.training.wire.messages import Prepared

POLICIES = pytest.mark.parametrize("policy", ["together", "alone", "own clocks"])


@POLICIES
def test_a_seed_gives_the_same_run(policy: str) -> None:
    for seed in range(20):
        one, other = (Schedule(seed, policy).go() for _ in range(2))
        assert one.now == other.now
        assert one.checks.records == other.checks.records


@POLICIES
def test_no_schedule_stops_a_run_or_makes_it_wrong(policy: str) -> None:
    assert first_violation(range(1500), policy) == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@POLICIES
def test_no_schedule_of_a_hundred_thousand_does(policy: str) -> None:
    assert first_violation(range(34_000), policy) == ""


def test_schedules_meet_what_can_happen() -> None:
    """Else they would prove little: every kind of line, and most of them often."""
    lines = [
        record["kind"]
        for policy in ("together", "own clocks")
        for seed in range(150)
        for record in Schedule(seed, policy).go().checks.records
    ]
    for kind in ("returned", "rewind", "order", "late", "lease", "checkpoint"):
        assert lines.count(kind) >= 5, kind


# Wrong state machines, which the schedules must notice.

taken, finish_prepared = RunState.taken, SynchronousRounds.finish_prepared


def says_it_first(self: RunState) -> Sequence[Effect]:
    """Messages go out before the ledger's lines are on the disk."""
    return sorted(taken(self), key=lambda effect: isinstance(effect, Append))


def keeps_the_lease(self: SynchronousRounds, name: str, lease: Any) -> None:
    """What a dead member held does not come back."""
    self._run.append("returned", round=self._run.committed + 1, worker=name)


def counts_late_reports(self: Attempt, name: str, message: Prepared) -> bool:
    """What was prepared in a group that is no more is taken for this one's."""
    current = self.round == message.round and name in self.members
    if current:
        self.prepared[name] = message
    return current


def waits_for_ever(self: SynchronousRounds, waiting: bool) -> bool:
    """A run never goes back to what there is left."""
    return False


def commits_what_was_prepared_with_others(self: SynchronousRounds) -> bool:
    """Whose lease went back since then is not looked at."""
    progress = self._run.progress
    members, progress.members = progress.members, [*progress.outstanding]
    done = finish_prepared(self)
    if not done:
        progress.members = members
    return done


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "says"),
    [
        (RunState, "taken", says_it_first, "is not in the ledger"),
        (SynchronousRounds, "give_back", keeps_the_lease, "samples are lost"),
        (Attempt, "accept", counts_late_reports, "was committed without"),
        (SynchronousRounds, "stuck", waits_for_ever, "stands still"),
        (
            SynchronousRounds,
            "finish_prepared",
            commits_what_was_prepared_with_others,
            "was committed without",
        ),
    ],
)
def test_a_mutant_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    mutant: Callable[..., Any],
    says: str,
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    found = first_violation(range(4000))
    assert found
    assert says in found
