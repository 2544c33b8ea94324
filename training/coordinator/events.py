"""Events: the values that a training run's state machine takes.

`pcp.training.coordinator.training_run` says which event comes when. A `Peer` is a
connection, which the state machine only compares with other ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, dataclass_transform

from pcp.manifest import Manifest
from pcp.training.storage.ledger_history import History
from pcp.training.wire.message import (
    Message,
)
from pcp.training.wire.operator_messages import (
    Order,
)

R = TypeVar("R")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[R]) -> type[R]:
    """A class of records, which nobody changes: the type checker says so.

    Not `frozen=True`, which makes a new one three times as slow.
    """
    return dataclass(slots=True)(cls)


class Peer(Protocol):
    """A connection to a worker or an operator, compared by identity."""

    @property
    def here(self) -> str:
        """The address at which the other end reached this machine."""
        ...


@record
class Program:
    """The facts of a compiled bundle, and of the data for it, that a run needs."""

    digest: str
    """The bundle's SHA-256."""
    size: int
    """The size of the bundle in bytes."""
    manifest: Manifest
    parameters: str
    """A digest of the parameters."""
    data: str
    """A digest of the data."""
    samples: int
    """The samples of an epoch."""
    data_parts: Sequence[tuple[str, str]] = field(default=(), kw_only=True)
    """Digests of parts of the data."""
    batch: int
    """Samples of one call of the model."""
    shapes: Sequence[Mapping[str, Any]] = field(default=(), kw_only=True)
    """How islands cut the state, where not all do alike."""


@record
class SavedState:
    """A state that is on this machine's disk: a checkpoint, or initial weights."""

    round: int
    workers: int
    """The members whose own state is in it; 0: it has weights alone."""
    nonfinite: Sequence[str] = ()
    """The tensors in which a number is not finite."""
    digest: str | None = None
    """The digest of its shared state, in the parts that members of the program hold."""


@record
class Opened:
    """The shepherd's process has begun."""


@record
class Tick:
    """A moment has passed, and all its events were handled."""


@record
class Received:
    """A message of a connection."""

    connection: Peer
    message: Message


@record
class Lost:
    """A connection ended."""

    connection: Peer
    reason: str


@record
class Ordered:
    """An order of an operator that has the key."""

    connection: Peer
    order: Order


@record
class Interrupted:
    """A signal asks the run to end well."""


@record
class Compiled:
    """The bundle for a worker's target is made; without a connection, for no worker."""

    connection: Peer | None
    program: Program


@record
class NotCompiled:
    """There is no bundle for a worker's target."""

    connection: Peer
    error: Exception
    alone: bool
    """Whether there is no bundle for any other target either."""


@record
class Loaded:
    """The initial weights were read."""

    saved: SavedState


@record
class Found:
    """The newest checkpoint that the run can go back to, if there is one."""

    saved: SavedState | None
    refused: Sequence[str]
    """Faults of newer checkpoints, a line each."""


@record
class OnDisk:
    """Whether an earlier process saved a round, and where."""

    round: int
    path: str | None
    damaged: Sequence[str]
    """Faults of damaged checkpoints of the round, a line each."""


@record
class Gathered:
    """The state of a round was fetched from its members, for a checkpoint."""

    round: int
    members: Sequence[str]
    nonfinite: Sequence[str]


@record
class Proved:
    """Whether a member has handed out the state of a round."""

    round: int
    member: str
    fault: str | None = None
    """Why it has not; None: it has."""
    at: str | None = None
    """The address that did not hand out the state, if that is the member's fault."""


@record
class Written:
    """A checkpoint is on the disk."""

    round: int
    members: Sequence[str]
    path: str


@record
class NotSaved:
    """A checkpoint could not be fetched, or not be written."""

    reason: str
    at: str | None = None
    """The address of a member that did not hand out its state."""


@record
class Recalled:
    """An event again, with the whole history of the ledger in memory."""

    event: "Event"
    history: History


Event = (
    Opened
    | Tick
    | Received
    | Lost
    | Ordered
    | Interrupted
    | Compiled
    | NotCompiled
    | Loaded
    | Found
    | OnDisk
    | Gathered
    | Proved
    | Written
    | NotSaved
    | Recalled
)
