"""Effects: the values that a training run's state machine returns, to be carried out.

The shell (`pcp.training.shepherd.shepherd`) carries effects out one after the other: a
line that must be on the disk before a peer knows of it comes before the message to the
peer. Effects are records, as events are (`pcp.training.coordinator.events`): an event
is what has happened, an effect what is to be done.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pcp.training.coordinator.events import Event, Peer, record
from pcp.training.storage.round_record import Round
from pcp.training.wire.message import (
    Message,
)


@record
class Append:
    """Write a line of the ledger; with `sync`, before anything else is done."""

    kind: str
    fields: Mapping[str, Any]
    sync: bool = True


@record
class Send:
    """Send a message, and behind it the bundle for a target."""

    connection: Peer
    message: Message
    bundle: str | None = None


@record
class Refuse:
    """Tell a peer why it is refused, and close the connection."""

    connection: Peer
    reason: str


@record
class Close:
    """Close a connection once its messages are out."""

    connection: Peer


@record
class Log:
    """One line for the observers."""

    text: str


@record
class ShowStatus:
    """Show the observers the status of the run: a heartbeat's interval has passed."""


@record
class Keep:
    """Keep the figures of the round that is committed next, without its time."""

    record: Round


@record
class ReportRound:
    """Show the figures of the round that was kept: it is committed."""

    record: Round


@record
class ReportValidation:
    """Show a held-out loss, and over how many batches it is the mean."""

    round: int
    loss: float
    batches: int


@record
class ReportCheckpoint:
    """Show that a round's state is on the disk, and where."""

    round: int
    path: str


@record
class Compile:
    """Make the bundle for a worker's target; answer `Compiled` or `NotCompiled`."""

    connection: Peer
    target: str


@record
class NoteSettings:
    """Keep the experiment as the run's, on the disk."""


@record
class MakeLatest:
    """Make this run the one that `--resume` continues."""


@record
class Gather:
    """Fetch the state of a round from its members; `Gathered` or `NotSaved`."""

    round: int
    digest: str | None
    members: Sequence[str]
    addresses: Sequence[str]
    info: Mapping[str, Any]
    """More keys of the checkpoint's `state.json`."""
    shapes: Sequence[int] = ()
    """The shape of each member's island, where not all are alike."""


@record
class Prove:
    """Fetch the state of a round from one member, and let it go; answer `Proved`."""

    round: int
    digest: str | None
    member: str
    addresses: Sequence[str]
    """Its address, or those of its ranks."""
    shapes: Sequence[int] = ()
    """The shape of its island, where not all are alike."""


@record
class Write:
    """Write the gathered state; answer `Written` or `NotSaved`."""

    round: int
    members: Sequence[str]


@record
class LookOnDisk:
    """Look for a whole checkpoint of a round; answer `OnDisk` at once."""

    round: int


@record
class FindCheckpoint:
    """Find the newest checkpoint of a round up to this one; answer `Found` at once."""

    at_most: int


@record
class LoadWeights:
    """Read the initial weights; answer `Loaded` at once."""


@record
class Serve:
    """Hand out the state that was found or loaded last to workers of these indices."""

    round: int
    parts: Sequence[int]


@record
class StopServing:
    """Stop handing out a state, and release it."""


@record
class Recall:
    """Read the whole history from the ledger's file; answer `Recalled` at once."""

    event: Event


@record
class Fail:
    """The run ends with this error."""

    error: Exception


Effect = (
    Append
    | Send
    | Refuse
    | Close
    | Log
    | ShowStatus
    | Keep
    | ReportRound
    | ReportValidation
    | ReportCheckpoint
    | Compile
    | NoteSettings
    | MakeLatest
    | Gather
    | Prove
    | Write
    | LookOnDisk
    | FindCheckpoint
    | LoadWeights
    | Serve
    | StopServing
    | Recall
    | Fail
)
