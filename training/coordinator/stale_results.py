"""Stale results: the inner steps of a member that a round went on without.

    drop    the steps do not count; their samples go back to the pool
    next    the member finishes them, and brings them into the next round that it joins

A late member of round t keeps its lease, and gets no message until its steps are made.
If the other members are then still making theirs, it joins the round under way, in a
group of the next epoch; else it is a member of the next round, in which it makes no
other steps. In round t + a it contributes θ_t - θ_m, its delta from the state in which
it began, and each of its tokens counts λ^a, with λ = `late_discount`:

    Δ = (Σ_in time w_m Δ_m + Σ_late λ^a w_l Δ_l) / (Σ_in time w_m + Σ_late λ^a w_l)

in every algorithm that averages deltas by tokens when a round ends. With inner
exchanges, replicas, or exchanges a round late there is no delta that could wait; a
learner's push is merged whenever it comes: `next` is an error there.
"""

from dataclasses import dataclass

from pcp.errors import ConfigError
from pcp.manifest import Manifest
from pcp.training.config.experiment import Experiment
from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.roster import Member
from pcp.training.coordinator.run_state import RunState
from pcp.training.data.lease_pool import Range
from pcp.training.trainer.bundle_checks import plan_of
from pcp.training.wire.messages import (
    Computed,
)


def check(experiment: Experiment, manifest: Manifest) -> None:
    """`ConfigError` where late steps are to count and cannot."""
    if experiment.late == "drop" or plan_of(manifest).deltas_keep:
        return
    raise ConfigError(
        f"late: 'next' does not go with {experiment.algorithm.partition('{')[0]}: its "
        "workers meet inside a round, have parameters or clocks of their own, or "
        "exchange a round late, so no delta can wait; say 'drop', or take diloco or "
        "another algorithm that averages deltas when a round ends"
    )


def discount(experiment: Experiment, age: int) -> float:
    """The weight of a token whose steps are `age` rounds late: λ^a."""
    return experiment.late_discount**age


@dataclass
class LateMember:
    """A member that did not make its steps in time; its lease is in the ledger."""

    round: int
    """The round of its lease."""
    done: bool = False


class StaleResults:
    """The late members of a run's rounds, by name.

    They end with the shepherd: the next shepherd returns the leases of late members.
    """

    def __init__(self, run: RunState) -> None:
        self._run = run
        self.members: dict[str, LateMember] = {}

    @property
    def counts(self) -> bool:
        """Whether late steps count at all."""
        return self._run.experiment.late == "next"

    def busy(self, name: str) -> bool:
        """Whether a member still makes late steps, and takes part in no round."""
        return name in self.members and not self.members[name].done

    def leases(self) -> dict[str, list[Range]]:
        """The leases of late members that have made their steps."""
        late = self._run.progress.late
        return {name: held for name, held in late.items() if not self.busy(name)}

    def keep(self, attempt: Attempt, name: str) -> None:
        """Keep the lease of a member that the round goes on without."""
        self._run.append("late", round=attempt.round, worker=name)
        self.members[name] = LateMember(attempt.round)

    def weight(self, name: str, round_: int) -> float:
        """The weight of each of a member's tokens in a round: λ^a."""
        late = self.members.get(name)
        age = 0 if late is None else round_ - late.round
        return discount(self._run.experiment, age)

    def computed(self, member: Member, message: Computed) -> list[Range] | None:
        """The lease of a late member whose steps this message reports made, or None."""
        late = self.members.get(member.name)
        if late is None or late.done or message.round != late.round:
            return None
        late.done = True
        return self._run.progress.late[member.name]

    def forget(self, name: str) -> list[Range] | None:
        """Drop a member's late steps; the lease that it had for them, if any."""
        if self.members.pop(name, None) is None:
            return None
        return self._run.progress.late.get(name)

    def settle(self, names: list[str]) -> None:
        """Forget these members' late steps: a round with them was committed."""
        for name in names:
            self.members.pop(name, None)
