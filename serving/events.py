"""What comes into the scheduler, and what it asks for: values, in memory alone.

`pcp.serving.scheduler` says which of them comes when. An event says what has been, an
effect what is to be; none is both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pcp.serving.interface import Sampled, Sampling, Tick

Reason = Literal["stop", "length", "cancelled", "timeout", "error"]
"""Why a request ended: a stop token or string, its limit, its client, its deadline, or
the engine."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of the model: tokens behind `prompt`, at most `limit` of them.

    `stop` are tokens that end it and are no part of the answer. `key` is who asks:
    slots are shared between keys. After `deadline`, in seconds on the scheduler's
    clock, nobody wants the answer.
    """

    number: int
    prompt: tuple[int, ...]
    limit: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: frozenset[int] = frozenset()
    key: str = ""
    deadline: float | None = None


# Events.


@dataclass(frozen=True, slots=True)
class Submitted:
    """A client asks. The number was never used before."""

    request: Request


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A request needs no more tokens: its client left, or its text has a stop string.

    Nothing happens to a request that has ended already.
    """

    request: int
    reason: Reason = "cancelled"


@dataclass(frozen=True, slots=True)
class TickDue:
    """All that came was handled: the engine may be given work, if it has none."""


@dataclass(frozen=True, slots=True)
class Ticked:
    """The engine computed the tick that it was given."""

    sampled: Sequence[Sampled]


@dataclass(frozen=True, slots=True)
class Lost:
    """The engine lost a rank, and with it what is in the slots' cache."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The engine is ready again, with empty slots."""


@dataclass(frozen=True, slots=True)
class NotRecovered:
    """The engine could not be made ready; it is tried again later."""

    why: str


@dataclass(frozen=True, slots=True)
class Draining:
    """The server ends: who is there is served, who comes is not."""


Event = (
    Submitted
    | Cancelled
    | TickDue
    | Ticked
    | Lost
    | Recovered
    | NotRecovered
    | Draining
)


# Effects.


@dataclass(frozen=True, slots=True)
class RunTick:
    """Give the engine a tick; answer `Ticked` or `Lost` some time later."""

    tick: Tick


@dataclass(frozen=True, slots=True)
class Recover:
    """Make the engine ready again; answer `Recovered` or `NotRecovered`."""


@dataclass(frozen=True, slots=True)
class SendToken:
    """The next token of an answer, which is token number `index` of it."""

    request: int
    index: int
    sampled: Sampled


@dataclass(frozen=True, slots=True)
class EndRequest:
    """An answer is complete: `tokens` were computed for it, `why` is for an error.

    `prompt` and `reused` are the tokens asked about and those of them that the cache
    had from an earlier request.
    """

    request: int
    reason: Reason
    tokens: int
    prompt: int
    reused: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class RefuseRequest:
    """A request that is not served.

    `status` is HTTP's: 400 for one that no slot can hold, 429 for one too many, 503
    while the engine is away. `retry_after` is in seconds.
    """

    request: int
    status: int
    code: str
    why: str
    retry_after: float | None = None


Effect = RunTick | Recover | SendToken | EndRequest | RefuseRequest
