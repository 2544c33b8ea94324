"""The messages between the shepherds of a run; `standby.election` is their protocol."""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from pcp.training.wire.message import Count, Message, Text, parsed

MAX_VOTERS = 9
Number = Annotated[int, Field(ge=0, lt=MAX_VOTERS)]
Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _OfATerm(Message, frozen=True):
    """The shepherd that sends it, and its term."""

    sender: Number
    term: Count


class VoteRequest(_OfATerm, frozen=True):
    """A candidate asks for a vote: its ledger has `count` lines, the last of `last`.

    A `trial` asks whether a vote for the next term would be given (a pre-vote).
    """

    kind: Literal["vote_request"] = "vote_request"
    last: Count
    count: Count
    trial: bool = False


class Vote(_OfATerm, frozen=True):
    """The answer to a `VoteRequest`."""

    kind: Literal["vote"] = "vote"
    granted: bool
    trial: bool = False


class Lines(_OfATerm, frozen=True):
    """The leader's lines from `start` on; the hash of the one before is `before`.

    The leader has `end` lines; `committed` of them count.
    """

    kind: Literal["lines"] = "lines"
    start: Count
    before: Hash
    lines: Annotated[tuple[str, ...], Field(max_length=1024)]
    end: Count
    committed: Count


class LinesTaken(_OfATerm, frozen=True):
    """The follower has the leader's first `count` lines; if not `taken`, try there."""

    kind: Literal["lines_taken"] = "lines_taken"
    taken: bool
    count: Count


class Blank(_OfATerm, frozen=True):
    """The sender's ledger was always empty; with `asks`, so may be the receiver's."""

    kind: Literal["blank"] = "blank"
    asks: bool = False


class Farewell(_OfATerm, frozen=True):
    """The leader has ended the run: no voter takes it over."""

    kind: Literal["farewell"] = "farewell"
    reason: Text


VoterMessage = VoteRequest | Vote | Lines | LinesTaken | Blank | Farewell
_ADAPTER: TypeAdapter[VoterMessage] = TypeAdapter(
    Annotated[VoterMessage, Field(discriminator="kind")]
)


def decode(raw: bytes | bytearray | memoryview) -> VoterMessage:
    """The message in `raw`, or `ProtocolError` saying what is wrong with it."""
    return parsed(_ADAPTER, raw, "shepherds")
