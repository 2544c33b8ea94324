"""A policy of rounds: when a round begins, with which members and leases.

There are two policies: in `pcp.training.coordinator.synchronous_rounds` all members
begin together, in `pcp.training.coordinator.asynchronous_rounds` each has its own
clock. A run has one policy, from its first program on. Their common part is
`pcp.training.coordinator.rounds`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pcp.training.coordinator.attempt import Attempt
from pcp.training.coordinator.events import SavedState
from pcp.training.coordinator.roster import Member


class RoundPolicy(ABC):
    """The decisions of a policy."""

    attempt: Attempt | None
    """The round under way."""

    @abstractmethod
    def exhausted(self) -> bool:
        """Whether no further round can begin: all are done, or the data is used up."""

    @abstractmethod
    def start(self, ready: list[Member]) -> None:
        """Between two rounds: give the ready members work."""

    @abstractmethod
    def check(self, now: float) -> None:
        """Apply time limits to the round under way."""

    @abstractmethod
    def lost(self, member: Member) -> None:
        """A member is gone; its part of this round does not count."""

    @abstractmethod
    def without(self, attempt: Attempt, name: str) -> None:
        """A member's part does not count: its samples are given out again."""

    def computing(self, name: str) -> bool:
        """Whether a member is to make inner steps now."""
        return self.attempt is not None and self.attempt.computing(name)

    @property
    def exchanges_inside(self) -> bool:
        """Whether there are inner exchanges: then one member's fault spreads to all."""
        return False

    @abstractmethod
    def forget(self, member: Member) -> None:
        """Drop a member's work outside of a round, with the state that it held."""

    @abstractmethod
    def give_up(self) -> None:
        """The committed state is lost: steps that were made from it do not count."""

    @abstractmethod
    def busy(self, name: str) -> bool:
        """Between two rounds: whether a worker still makes steps that will count."""

    @abstractmethod
    def goes_on_from(self, held: int | None) -> bool:
        """Whether a worker may begin from the state of this round."""

    @abstractmethod
    def needs_holder(self) -> bool:
        """Whether no round can begin until a worker holds the committed state."""

    @abstractmethod
    def stuck(self, waiting: bool) -> bool:
        """Whether the run waits for a state; `waiting` says that a worker does."""

    @abstractmethod
    def starts_without_holder(self, ready: Sequence[Member]) -> bool:
        """Whether ready members can begin though none holds the committed state."""

    @abstractmethod
    def left(self, saved: SavedState, ready: Sequence[Member]) -> bool:
        """Whether some ready members have left the state that is handed out."""

    @abstractmethod
    def finish_prepared(self) -> bool:
        """Commit a round that was prepared by all when the last shepherd died."""

    @abstractmethod
    def _particulars(self, attempt: Attempt, name: str) -> dict[str, Any]:
        """Further keys of a member's `RoundStart`."""

    @abstractmethod
    def _retry(self, attempt: Attempt) -> None:
        """Handle a failed attempt; `attempt` is the one that could follow."""

    @abstractmethod
    def _settle(self, attempt: Attempt) -> None:
        """Note that the steps of these members have counted."""
