"""The base of all messages: JSON objects, each in one frame, with checked values.

`kind` names a message; an unknown kind, key or a value out of bounds is a
`ProtocolError`. A loss may be NaN or infinite, and travels as `pcp.strict_json` spells
it. Frames are those of `pcp.training.wire.channel`.
"""

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from pcp import strict_json
from pcp.errors import ProtocolError

VERSION = 15
"""The version of this protocol; a `Hello` with another version is refused."""

Name = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(max_length=4000)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Lease = Annotated[list[tuple[Count, Count]], Field(max_length=100_000)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Message(BaseModel, frozen=True):
    """Base of all messages; a kind's validator is built when the first one comes."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    kind: str


M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """The JSON of a message."""
    return strict_json.dumps(message.model_dump()).encode()


def parsed(
    adapter: TypeAdapter[M], raw: bytes | bytearray | memoryview, whose: str
) -> M:
    """The message in `raw`, or `ProtocolError` saying what is wrong with it.

    `whose` names the protocol in the error.
    """
    try:
        return adapter.validate_json(bytes(raw))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "message"
        why = f"not a message of {whose}: {where}: {first['msg']}"
        raise ProtocolError(why) from None


class DataInput(BaseModel, frozen=True):
    """A data input of the program that is to be compiled, with the batch in front."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    shape: Annotated[list[Count], Field(max_length=100)]
    dtype: Name
