"""No drawn schedule of faults makes a run's state machine wrong, or stop.

Here `TrainingRun.step` alone is real, so many thousands of schedules take minutes;
`test_training_simulation.py` has the workers' and the shell's code too, in hundreds.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import pytest
from helpers.simulation import run_schedules
from helpers.simulation.run_schedules import Schedule, first_violation

from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.effects import Append, Effect
from pcp.training.coordinator.guards.progress_policy import ProgressPolicy
from pcp.training.coordinator.roster import Member
from pcp.training.coordinator.rounds import Rounds
from pcp.training.coordinator.run_state import RunState
from pcp.training.coordinator.straggler_detection import StragglerDetection
from pcp.training.coordinator.synchronous_rounds import SynchronousRounds
from pcp.training.coordinator.training_run import TrainingRun
from pcp.training.wire.messages import (
    Prepared,
)

POLICIES = pytest.mark.parametrize("policy", [*run_schedules.POLICIES])


@POLICIES
def test_a_seed_gives_the_same_run(policy: str) -> None:
    for seed in range(20):
        one, other = (Schedule(seed, policy).go() for _ in range(2))
        assert one.now == other.now
        assert one.checks.records == other.checks.records


@POLICIES
def test_no_schedule_stops_a_run_or_makes_it_wrong(policy: str) -> None:
    assert first_violation(range(120), policy) == ""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@POLICIES
def test_no_schedule_of_a_hundred_thousand_does(policy: str) -> None:
    assert first_violation(range(20_000), policy) == ""


class Past(NamedTuple):
    """What is left of a schedule when it is over."""

    records: list[dict[str, Any]]
    lost: set[str]
    hung: int
    unhung: int


@cache
def past(seed: int, policy: str) -> Past:
    """Made once: several tests look at the first seeds."""
    run = Schedule(seed, policy).go()
    hung = sum(node.hung for node in run.nodes.values())
    return Past(run.checks.records, {*run.lost}, hung, run.unhung)


def records(policy: str, seeds: int) -> list[dict[str, Any]]:
    """The lines of the ledgers of so many schedules."""
    return [record for seed in range(seeds) for record in past(seed, policy).records]


def test_schedules_meet_what_can_happen() -> None:
    """Else they would prove little: every kind of line, and most of them often."""
    lines = [
        record["kind"]
        for policy in ("together", "own clocks")
        for record in records(policy, 150)
    ]
    for kind in ("returned", "rewind", "order", "late", "lease", "checkpoint"):
        assert lines.count(kind) >= 5, kind


@pytest.mark.parametrize(
    ("policy", "messages"),
    [
        ("together", "hello welcome ready round_start computed prepared commit"),
        ("own clocks", "hello welcome ready learn learned round_start prepared commit"),
        ("fragments", "hello welcome ready round_start prepared commit group_failed"),
    ],
)
def test_messages_of_every_kind_are_lost(policy: str, messages: str) -> None:
    wanted = {*messages.split()}
    for seed in range(400):
        wanted -= past(seed, policy).lost
        if not wanted:
            break
    assert not wanted


def test_workers_hang_and_are_ended() -> None:
    """Wherever they are: nothing but their heartbeats shows that they live."""
    hung = ended = 0
    for policy in ("together", "own clocks"):
        for seed in range(100):
            hung += past(seed, policy).hung
            ended += past(seed, policy).unhung
    assert hung > 15
    assert 2 * ended > hung, "the others were in nobody's way"


@POLICIES
def test_rounds_have_the_members_of_their_policy(policy: str) -> None:
    members = [
        len(line["members"]) for line in records(policy, 20) if line["kind"] == "round"
    ]
    assert (max(members) > 1) == (policy != "alone")


def test_members_that_meet_go_on_begin_again_and_leave_each_other_behind() -> None:
    exchanged, left_out = Counter[int](), 0
    for seed in range(150):
        run = Schedule(seed, "fragments")
        run.trace = []
        run.go()
        exchanged.update(run.resumed)
        left_out += sum("is left out" in line for line in run.trace)
    assert min(exchanged[-1], exchanged[1], exchanged[2], left_out) >= 2, exchanged


# Wrong state machines, which the schedules must notice. Each is wrong in its own way.

taken, finish_prepared = RunState.taken, SynchronousRounds.finish_prepared
tell, settle, drop = Rounds._tell, SynchronousRounds._settle, TrainingRun._drop


def says_it_first(self: RunState) -> Sequence[Effect]:
    """Messages go out before the ledger's lines are on the disk."""
    return sorted(taken(self), key=lambda effect: isinstance(effect, Append))


def keeps_the_lease(self: SynchronousRounds, name: str, lease: Any) -> None:
    """What a dead member held does not come back."""
    self._run.append("returned", round=self._run.committed + 1, worker=name)


def counts_stale_results(self: Attempt, name: str, message: Prepared) -> bool:
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


def loses_the_commit(self: Rounds, attempt: Attempt, digest: str) -> None:
    """The members are taken to have heard of a commit that they were not sent."""
    for name in attempt.members:
        self._run.roster[name].committed = attempt.round


def gives_samples_out_again(self: SynchronousRounds, attempt: Attempt) -> None:
    """What a round has used goes back to the pool: it counts twice."""
    settle(self, attempt)
    for lease in attempt.leases.values():
        self.pool.give_back(lease)


def is_content_with_a_quorum(self: Attempt) -> bool:
    """A round is committed when all members but one have prepared it."""
    if len(self.prepared) < max(1, len(self.members) - 1):
        return False
    self.members = [name for name in self.members if name in self.prepared]
    self.leases = {name: self.leases[name] for name in self.members}
    return True


def keeps_who_connects_again(self: TrainingRun, member: Member, reason: str) -> None:
    """What a worker said on a connection that broke is waited for on the next one."""
    if reason == "connected again":
        self.state.roster.remove(member)
    else:
        drop(self, member, reason)


def looks_at_nobody(self: Rounds, now: float) -> None:
    """Who hangs is waited for."""


def hears_of_no_others(self: ProgressPolicy) -> list[tuple[Member, str]]:
    """Who is with others, as it says, is left there."""
    return []


def ignores_whom_others_lack(self: StragglerDetection, *_: Any) -> dict[str, set[str]]:
    """What members say of those for whom they wait."""
    return {}


def lets_it_come_again(self: Rounds, member: Member, why: str) -> None:
    """Who does nothing is let go, and its process is left to dial again."""
    self.drop(member, why)


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "policy", "says"),
    [
        (Rounds, "check_progress", looks_at_nobody, "together", "stands still"),
        (Rounds, "_end", lets_it_come_again, "together", "stands still"),
        (ProgressPolicy, "_lacked", hears_of_no_others, "together", "which hangs"),
        (
            StragglerDetection,
            "lacked",
            ignores_whom_others_lack,
            "together",
            "which hangs",
        ),
        (RunState, "taken", says_it_first, "together", "is not in the ledger"),
        (SynchronousRounds, "give_back", keeps_the_lease, "together", "are lost"),
        (Attempt, "accept", counts_stale_results, "together", "committed without"),
        (Attempt, "accept", counts_stale_results, "every step", "committed without"),
        (SynchronousRounds, "stuck", waits_for_ever, "together", "stands still"),
        (
            SynchronousRounds,
            "finish_prepared",
            commits_what_was_prepared_with_others,
            "together",
            "committed without",
        ),
        (Rounds, "_tell", loses_the_commit, "fragments", "stands still"),
        (
            SynchronousRounds,
            "_settle",
            gives_samples_out_again,
            "alone",
            "given out twice",
        ),
        (
            Attempt,
            "complete",
            property(is_content_with_a_quorum),
            "together",
            "consumed other samples",
        ),
        (
            TrainingRun,
            "_drop",
            keeps_who_connects_again,
            "every step",
            "returned no lease of its",
        ),
    ],
)
def test_a_mutant_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    mutant: Callable[..., Any],
    policy: str,
    says: str,
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    found = first_violation(range(4000), policy)
    assert found
    assert says in found or "hangs nowhere" in found
