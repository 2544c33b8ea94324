"""Every message between the shepherd and its workers.

    worker                                   shepherd
      Hello            ──────────────────────►
                       ◄──────────────────────  Expects     before anything is
      Hello(data)      ──────────────────────►              compiled for it
                       ◄──────────────────────  Welcome (+ the bundle), or Refused
                       ◄──────────────────────  Restore(round, source)
      (fetches the committed state from a veteran)
      Ready(round, digest) ──────────────────►
                       ◄──────────────────────  RoundStart(round, epoch, lease)
      (inner steps)
      Computed         ──────────────────────►  slow members may be left out
      (outer step with its peers)
      Prepared         ──────────────────────►
                       ◄──────────────────────  Commit      all members prepared
                       ◄──────────────────────  RoundStart(round, epoch + 1)
                                                a member died: redo the outer step
      GroupFailed      ──────────────────────►  an exchange failed: ask for that
      Validated        ──────────────────────►
      Heartbeat        ──────────────────────►  always, on a timer; where it is
                       ◄──────────────────────  Heartbeat
                       ◄──────────────────────  Stalled     no step for too long
                       ◄──────────────────────  Shutdown

Where learners have clocks of their own, a lease comes before the round:

                       ◄──────────────────────  Learn(lease)
      Learned          ──────────────────────►  its inner steps are made
                       ◄──────────────────────  RoundStart(round, source, ...)
      (the newest state from its source, the outer step; Prepared, Commit)

Rounds and epochs only grow, so a late message is recognised by its number and ignored.
Messages of operators are in `operator_messages`.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    model_serializer,
)

from pcp.training.wire.message import (
    Count,
    DataInput,
    Digest,
    Finite,
    Lease,
    Message,
    Name,
    Seconds,
    Text,
    parsed,
)
from pcp.training.wire.operator_messages import Order, Status, StatusQuery, Taken

Ranks = Annotated[list[Count], Field(max_length=10_000)]


class Prepared(Message, frozen=True):
    """A member's round is computed; it waits for the commit.

    Losses may be NaN or infinite; then `nonfinite_step`, from 1, is the first inner
    step with such a loss, and `nonfinite_loss` that loss. `metrics` are the program's,
    over its inner steps: means, and sums of integers; `round_trip` is in its group.
    """

    kind: Literal["prepared"] = "prepared"
    round: Count
    epoch: Count
    digest: Digest
    loss: float
    loss_first: float
    steps: Count
    tokens: Count
    bytes_sent: Count
    bytes_received: Count
    compute_seconds: Finite
    exchange_seconds: Finite
    data_wait_seconds: Seconds = 0.0
    processor_seconds: Seconds = 0.0
    resident_bytes: Count = 0
    nonfinite_step: Annotated[Count, Field(ge=1)] | None = None
    nonfinite_loss: float | None = None
    metrics: Annotated[dict[Name, int | float], Field(max_length=1000)] | None = None
    moved: float | None = None
    """The L2 norm of the round's change of the shared state."""
    gradient_norm: float | None = None
    """The L2 norm of the last inner step's gradient, unclipped; None: not known."""
    learning_rate: Finite | None = None
    spoiled: list[Name] = Field(default_factory=list, max_length=3)
    """The first three tensors of the result that have a number that is not finite."""
    round_trip: Seconds = 0.0
    disputes: bool = False
    """The result of rank 0 differs from this member's by more than rounding."""

    @model_serializer(mode="wrap")
    def _without_none(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A message of a program without metrics is as in older versions."""
        values = dump(self)
        if values.get("metrics") is None:
            values.pop("metrics", None)
        return values


class Hello(Message, frozen=True):
    """A worker introduces itself, for the first time or again.

    `committed` is the round of the state of `run` that the worker holds; None: it holds
    none. `island`, its `shape` and `coordinate` are of the island in which the worker
    was a rank; None: it has been in none. `data` is the digest of its data, checked
    against an `Expects`; `round_trip` is that to the shepherd.
    """

    kind: Literal["hello"] = "hello"
    version: int
    worker: Name
    target: Name
    backend: Name
    device: Name
    address: Name
    run: Name | None = None
    bundle: Digest | None = None
    committed: Count | None = None
    digest: Digest | None = None
    prepared: Prepared | None = None
    supervisor: Name | None = None
    island: Name | None = None
    coordinate: Count | None = None
    shape: Count = 0
    data: Digest | None = None
    round_trip: Seconds = 0.0


class Expects(Message, frozen=True):
    """The data that a worker must have; a worker that has them sends `Hello` again.

    `data_parts` are as in a `Welcome`. The message is sent where the data are known
    before a program is: a worker with other data is then refused before a program is
    compiled for it.
    """

    kind: Literal["expects"] = "expects"
    experiment: dict[str, Any]
    inputs: Annotated[list[DataInput], Field(max_length=1000)]
    data: Digest
    data_parts: list[tuple[Text, Name]] = Field(default_factory=list, max_length=1000)


class Refused(Message, frozen=True):
    """The shepherd will not work with this peer; the connection ends."""

    kind: Literal["refused"] = "refused"
    reason: Text


class Welcome(Message, frozen=True):
    """The shepherd admits a worker; the bundle follows, unless the worker has it.

    A worker that holds the state of `committed`, or has prepared it with this digest,
    takes part in the next round; another worker waits for a `Restore`. `data_parts` are
    digests of parts of the data, by which the worker finds where its own data differ.
    The worker is the rank `coordinate` of `island`, or all of the island, and `digest`
    is of its part of the state.
    """

    kind: Literal["welcome"] = "welcome"
    worker: Name
    index: Count
    run: Name
    experiment: dict[str, Any]
    heartbeat_seconds: Annotated[float, Field(gt=0, le=60)]
    bundle: Digest
    bundle_bytes: Count
    data: Digest
    data_parts: list[tuple[Text, Name]] = Field(default_factory=list, max_length=1000)
    committed: Count
    digest: Digest | None
    island: Name | None = None
    coordinate: Count = 0
    shape: Count = 0
    shapes: list[dict[str, Any]] = Field(default_factory=list, max_length=100)
    """How islands of each `shape` cut the state, where not all are alike."""
    term: Count = 0
    """The term of the shepherd among voters; workers ignore messages of older terms."""


class Restore(Message, frozen=True):
    """Take the state of `round` from `source`, then say `Ready`.

    Without a source the state is made from the seed. With `keep`, a worker that comes
    back keeps its inner optimizer's state, and its part that has not been sent yet.
    """

    kind: Literal["restore"] = "restore"
    round: Count
    source: Name | None
    keep: bool = False
    ranks: list[Name] = Field(default_factory=list, max_length=10_000)
    """The ranks of an island of another `shape`, which hold the state together."""
    shape: Count = 0


class Ready(Message, frozen=True):
    """The worker holds the state of `round`, and can take part in the next one.

    Sent after a `Restore`, after the worker caught up with its group (a shepherd does
    not see that), and in answer to the start of a round that the worker has already.
    """

    kind: Literal["ready"] = "ready"
    round: Count
    digest: Digest


class Lacking(Message, frozen=True):
    """The source of a `Restore` is gone; name another one."""

    kind: Literal["lacking"] = "lacking"
    round: Count


class RoundStart(Message, frozen=True):
    """Work on `round` in the group of `epoch`; `members` are by rank, `distance` apart.

    The same round and lease in a later epoch means: the group changed, keep the inner
    steps and redo the exchange. For a rank of an island, `members` are the ranks at its
    coordinate of all islands, and `island` are the ranks of its own island by
    coordinate; inner steps that began in one `inner_epoch` do not go on in another.
    """

    kind: Literal["round_start"] = "round_start"
    round: Count
    epoch: Count
    members: Annotated[list[Name], Field(min_length=1, max_length=10_000)]
    rank: Count
    lease: Lease
    steps: Count
    longest: Count
    """The most steps of a member; where each step has an exchange, all wait for it."""
    carried: bool = False
    """The steps on the lease were made from an older state, and count."""
    weight: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The weight of each token of those steps."""
    source: Name | None = None
    """The address of the state of the round before, where rank 0 may lack it."""
    digest: Digest | None = None
    """The digest of that state."""
    island: list[Name] = Field(default_factory=list, max_length=10_000)
    """The addresses of the ranks of the island; empty: the member is alone in it."""
    inner_epoch: Count = 0
    shapes: list[Count] = Field(default_factory=list, max_length=10_000)
    """The shapes of unlike islands; `members` are then all ranks of all islands."""
    distance: tuple[Seconds, Seconds] | None = None
    term: Count = 0


class LeaseGrant(Message, frozen=True):
    """A learner's lease: inner steps from the state that it holds, on its own clock.

    Steps on a lease that are made, or under way, do not begin again.
    """

    kind: Literal["learn"] = "learn"
    turn: Count
    lease: Lease
    steps: Count


class Push(Message, frozen=True):
    """The inner steps of a `LeaseGrant` are made; they can be merged."""

    kind: Literal["learned"] = "learned"
    turn: Count
    seconds: Seconds


class Computed(Message, frozen=True):
    """A member's inner steps are done; the member goes on to the exchange.

    A member whose `loss` or `moved`, the L2 norm of the change of its parameters, is
    not finite stays out of the exchange, and waits for another message.
    """

    kind: Literal["computed"] = "computed"
    round: Count
    epoch: Count
    loss: float | None = None
    moved: float | None = None
    nonfinite_step: Annotated[Count, Field(ge=1)] | None = None
    """The first inner step with such a loss."""


class Commit(Message, frozen=True):
    """Round `round` of `epoch` counts: adopt it. `validate_share` asks for losses.

    `validate_share` is (k, n): evaluate the held-out batches k, k+n, k+2n, ... A member
    that prepared another state takes the shared part of the state from `source`, keeps
    its own part, and sends `Ready`.
    """

    kind: Literal["commit"] = "commit"
    round: Count
    epoch: Count
    digest: Digest
    source: Name | None = None
    validate_share: tuple[Count, Count] | None = None


class Validated(Message, frozen=True):
    """Sum of the losses of a worker's share of the held-out batches."""

    kind: Literal["validated"] = "validated"
    round: Count
    loss_sum: float
    batches: Count


class GroupFailed(Message, frozen=True):
    """An exchange of `epoch` failed here; `lost` are the ranks that did not come to it.

    `inside`: among the ranks of the own island. The own rank is lost without its steps.
    """

    kind: Literal["group_failed"] = "group_failed"
    round: Count
    epoch: Count
    reason: Text
    lost: Ranks = Field(default_factory=list)
    inside: bool = False


class AwaitedRanks(BaseModel, frozen=True):
    """Ranks that have not come to the call in which a member is for so long."""

    model_config = ConfigDict(extra="forbid")

    ranks: Ranks
    seconds: Seconds


class InnerExchangeReport(BaseModel, frozen=True):
    """How far a member is in a round with exchanges between inner steps.

    `entered` counts the exchanges that the member has entered; `waits` is how many
    seconds it has waited in the last of them, None while it makes inner steps. `awaits`
    is for whom it waits in a call of the round. Where it is with others and in no call,
    `alone` is for how many seconds. Neither is said at once.
    """

    model_config = ConfigDict(extra="forbid")

    round: Count
    epoch: Count
    entered: Count
    waits: Seconds | None = None
    awaits: AwaitedRanks | None = None
    alone: Seconds | None = None


class Whereabouts(BaseModel, frozen=True):
    """Where a worker's own thread is: in which call, for how many seconds.

    `steps` counts the inner steps that its process has made, and the held-out batches
    that it has evaluated.
    """

    model_config = ConfigDict(extra="forbid")

    call: Literal[
        "waiting", "loading", "restoring", "forming", "data", "step", "exchange",
        "validating",
    ]  # fmt: skip
    steps: Count
    since: Seconds

    @property
    def with_others(self) -> bool:
        """Whether it is where it waits for others."""
        return self.call in ("exchange", "forming")


class Heartbeat(Message, frozen=True):
    """The sender lives; a worker adds its whereabouts, a member its progress."""

    kind: Literal["heartbeat"] = "heartbeat"
    meeting: InnerExchangeReport | None = None
    at: Whereabouts | None = None


class Stalled(Message, frozen=True):
    """The worker makes no progress: it logs where its threads are, and ends."""

    kind: Literal["stalled"] = "stalled"
    reason: Text


class Failed(Message, frozen=True):
    """The worker cannot go on and leaves."""

    kind: Literal["failed"] = "failed"
    reason: Text


class Shutdown(Message, frozen=True):
    """The run is over; the worker exits with 0."""

    kind: Literal["shutdown"] = "shutdown"
    reason: Text


AnyMessage = Annotated[
    Hello
    | Expects
    | Refused
    | Welcome
    | Restore
    | Ready
    | Lacking
    | RoundStart
    | LeaseGrant
    | Push
    | Computed
    | Prepared
    | Commit
    | Validated
    | GroupFailed
    | Heartbeat
    | Failed
    | Stalled
    | Shutdown
    | StatusQuery
    | Status
    | Order
    | Taken,
    Field(discriminator="kind"),
]
_ADAPTER: TypeAdapter[Message] = TypeAdapter(
    AnyMessage, config=ConfigDict(defer_build=True)
)


def decode(raw: bytes | bytearray | memoryview) -> Message:
    """The message in `raw`, or `ProtocolError` saying what is wrong with it."""
    return parsed(_ADAPTER, raw, "this protocol")
