"""One attempt at a round: its members, their samples, and the members that are done.

An attempt is for one round and one epoch. When a member dies the next attempt
of the round has the survivors, a higher epoch and the same leases. A round is
committed when all members of its newest attempt have prepared the same state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

from pcp.errors import StateMismatch
from pcp.training.coordinator.straggler_detection import StragglerDetection
from pcp.training.data.lease_pool import Range, size
from pcp.training.wire.messages import (
    Prepared,
    RoundStart,
    Whereabouts,
)


@dataclass
class Attempt:
    """The round under way. `members` are worker names in rank order."""

    round: int
    epoch: int
    members: list[str]
    leases: dict[str, list[Range]]
    """The samples of each member, by name."""
    began: float
    launched: float = 0.0
    """When the messages that start this attempt were sent."""
    first: bool = True
    """Whether this is the round's first attempt."""
    computed: dict[str, float] = field(default_factory=dict)
    """When each member had done its inner steps."""
    prepared: dict[str, Prepared] = field(default_factory=dict)
    failed_at: float | None = None
    """When the first member reported that an exchange failed."""
    reported: set[str] = field(default_factory=set)
    """Members that reported a failed exchange."""
    silences: dict[str, int] = field(default_factory=dict)
    """In how many attempts before, with the same members, each member was silent."""
    suspects: dict[str, set[str]] = field(default_factory=dict)
    """Members that other members could not reach, and which members those were."""
    faults: dict[str, tuple[float, str]] = field(default_factory=dict)
    """Members whose inner steps may not count, with the first bad step and why;
    infinity: no loss was bad."""
    straggler_detection: StragglerDetection = field(default_factory=StragglerDetection)
    """Which members wait for others in inner exchanges."""
    retries: int = 0
    """How often the round was tried again with the same members."""
    digest: str | None = None
    """The digest of the state that counts, once it is known."""
    before: Mapping[str, str] = field(default_factory=dict)
    """The digests of the last attempt by name, if it had the same members."""
    aside: dict[str, list[Range]] = field(default_factory=dict)
    """The member that this attempt leaves out, to see if it spoils the result."""
    cleared: list[str] = field(default_factory=list)
    """Members that earlier attempts left out for that."""

    def accept(self, name: str, message: Prepared) -> bool:
        """Note that a member is done; False for a late message."""
        current = (self.round, self.epoch) == (message.round, message.epoch)
        if current and name in self.leases:
            self.prepared[name] = message
        return current and name in self.leases

    def computing(self, name: str) -> bool:
        """Whether a member is still making inner steps."""
        done = name in self.computed or name in self.prepared
        return not done and name in self.leases

    @property
    def slow(self) -> list[str]:
        """Members that are still making inner steps."""
        return [name for name in self.members if self.computing(name)]

    def heard(self, name: str) -> bool:
        """Whether a member has done its steps, or the exchange, or said it failed."""
        return name in self.computed or not self.awaits(name)

    def silent(self) -> dict[str, int]:
        """Members that were silent, with the number of attempts, this one included."""
        quiet = [name for name in self.members if not self.heard(name)]
        return {name: self.silences.get(name, 0) + 1 for name in quiet}

    def awaits(self, name: str) -> bool:
        """Whether a message of a member is still awaited.

        A member with a fault waits for the others' reports.
        """
        done = name in self.prepared or name in self.reported
        return not done and name not in self.faults

    def lags(self, name: str, at: Whereabouts | None) -> bool:
        """Whether others have long done what a member waits for, or there are none."""
        if at is None or not at.with_others:
            return False
        others = {*self.members} - {name}
        if self.straggler_detection.elsewhere(name):
            return True  # it was for another attempt that it went there
        if at.call == "forming" and others:
            return not others.isdisjoint([*self.computed, *self.prepared])
        return others <= {*self.prepared}

    def lacked(self, limits: Mapping[str, float], now: float) -> dict[str, set[str]]:
        """The members that most of the others wait for, each with those.

        In calls, as `StragglerDetection.lacked` has it; or for its report, where their
        own parts may not count: which part was the first is known by all reports.
        """
        unreported = {
            name: [n for n in self.faults if now - self.computed[n] >= limits[name]]
            for name in (self.slow if self.faults else ())
        }
        return self.straggler_detection.lacked(self.members, limits, unreported)

    @property
    def complete(self) -> bool:
        """Whether all members are done."""
        return len(self.prepared) == len(self.members)

    @property
    def agreed(self) -> str:
        """The digest of the state that counts; StateMismatch without one."""
        if self.digest is None:
            raise StateMismatch(f"round {self.round}: no state of it was agreed on")
        return self.digest

    def first_faults(self) -> dict[str, str]:
        """The members with the earliest fault, which may have caused the others'."""
        earliest = min(step for step, _ in self.faults.values())
        return {n: why for n, (step, why) in self.faults.items() if step == earliest}

    def samples(self, name: str) -> int:
        """The number of samples in a member's lease."""
        return size(self.leases[name])

    def steps(self, name: str, quantum: int) -> int:
        """The number of inner steps in a member's lease."""
        return size(self.leases[name]) // quantum

    def orders(
        self,
        addresses: Sequence[str],
        quantum: int,
        particulars: Callable[[str], Mapping[str, Any]],
    ) -> list[RoundStart]:
        """The `RoundStart` of each member, by rank.

        `particulars` gives further keys of a member's message. `addresses` are by rank,
        `quantum` is in samples.
        """
        steps = {name: self.steps(name, quantum) for name in self.members}
        longest = max(steps.values())
        first, *_ = self.members
        # All share one list of members, which is looked through once, not N times.
        shared = RoundStart(
            round=self.round,
            epoch=self.epoch,
            members=list(addresses),
            rank=0,
            lease=self.leases[first],
            steps=steps[first],
            longest=longest,
        )
        return [
            shared.model_copy(
                update={
                    "rank": rank,
                    "lease": [(start, stop) for start, stop in self.leases[name]],
                    "steps": steps[name],
                    **particulars(name),
                }
            )
            for rank, name in enumerate(self.members)
        ]

    def again(
        self,
        epoch: int,
        without: Sequence[str] = (),
        joining: Mapping[str, list[Range]] = MappingProxyType({}),
    ) -> Self:
        """The next attempt of the round.

        The attempt leaves out the members `without`, and adds those `joining`, with a
        lease.
        """
        stay = [name for name in self.members if name not in without]
        members = [*stay, *joining]
        return type(self)(
            round=self.round,
            epoch=epoch,
            members=members,
            leases={name: self.leases[name] for name in stay} | dict(joining),
            began=self.began,
            first=False,
            retries=self.retries + (members == self.members),
            silences=self.silent() if members == self.members else {},
            before=self._digests_by_name() if members == self.members else {},
            aside={n: held for n, held in self.aside.items() if n not in members},
            cleared=self.cleared,
        )

    def _digests_by_name(self) -> dict[str, str]:
        return {name: message.digest for name, message in self.prepared.items()}
