"""What the coordinator's state machine says, hears and remembers: plain records.

`membership` is the machine.
"""

from dataclasses import dataclass, field
from typing import Any

Key = tuple[int, int]
"""An operation of an epoch: its tag and sequence number."""


@dataclass(frozen=True)
class SendMessage:
    """A message to a member."""

    to: str
    what: str
    """prepare, go, unvoted, dead, query, decided or refused."""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class GroupMember:
    """Somebody who registered and lives."""

    name: str
    address: str
    voted: bool = False
    broken: bool = False
    """Whether it said so: it cannot go on in the epoch it is in."""
    blamed: int = 0
    """How many formations in a row somebody could not reach it in."""
    at: int = 0
    """The epoch it was in when it came back, kept up from then on; -1 before."""
    formed: int = 0
    """The last epoch it had all connections of, when it came back."""
    turn: int = 0
    """How many votes of its epoch were answered, so far without a change."""


@dataclass
class Decision:
    """An operation whose outcome is being asked for."""

    askers: set[str] = field(default_factory=set)
    answers: dict[str, bool] = field(default_factory=dict)
    outcome: bool | None = None


@dataclass(frozen=True)
class Past:
    """What a member that comes back knows."""

    epoch: int = 0
    """The last epoch it was told to go on with; 0 for none."""
    formed: int = 0
    """A later epoch of which it has all connections; 0 for none."""
    group: dict[str, str] = field(default_factory=dict)
    """Addresses of the later one's members by name, in order of rank."""
    gone: list[str] = field(default_factory=list)
    """Those of them that a coordinator called dead: outcomes did without them."""
    prepared: int = 0
    """The last epoch it heard of."""
    turn: int = 0
    """How many of its votes in this epoch were answered."""
    voting: bool = False
    broken: bool = False
