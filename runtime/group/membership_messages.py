"""Records of the membership state machine: messages, members, decisions.

`membership` is the state machine.
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
    """prepare, go, unvoted, dead, query, decided, present or refused."""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class GroupMember:
    """A live member that has joined."""

    name: str
    address: str
    voted: bool = False
    broken: bool = False
    """Whether it reported that its epoch lost a member or was aborted."""
    blamed: int = 0
    """In how many formations in a row a candidate could not reach it."""
    at: int = 0
    """Its epoch, known since it came back; -1 before."""
    formed: int = 0
    """The last epoch with all its connections, when it came back."""
    turn: int = 0
    """How many votes of its epoch were answered, all without a change."""


@dataclass
class Decision:
    """An operation whose outcome is to be decided."""

    askers: set[str] = field(default_factory=set)
    answers: dict[str, bool] = field(default_factory=dict)
    outcome: bool | None = None


@dataclass(frozen=True)
class Past:
    """The past of a member that connects again."""

    epoch: int = 0
    """The last epoch with a go; 0 for none."""
    formed: int = 0
    """A later epoch with all its connections; 0 for none."""
    group: dict[str, str] = field(default_factory=dict)
    """Addresses of the later epoch's members by name, in order of rank."""
    gone: list[str] = field(default_factory=list)
    """Its members that a coordinator declared dead: decisions leave them out."""
    prepared: int = 0
    """The last epoch that a prepare named."""
    turn: int = 0
    """How many of its votes in this epoch were answered."""
    voting: bool = False
    broken: bool = False
