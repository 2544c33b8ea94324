"""The border between what decides (scheduler, gateway) and what computes (engine).

The truth about a request is its tokens, its seed and the position: an engine's cache is
a cache. A slot is a row of that cache; the scheduler says which request has which slot,
and the engine computes what a tick says, nothing else.

A random number follows from the seed of the request and the position of the token that
is drawn alone. So a result depends neither on the batch nor on the slot, and neither on
the number of ranks nor on a restart in between.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pcp.errors import RuntimeFault


@dataclass(frozen=True)
class Sampling:
    """How the next token of a request is chosen.

    `temperature` 0 takes the most probable token. `top_k` 0, `top_p` 1 and `min_p` 0
    leave everything in. The penalties and `logit_bias` are those of OpenAI's API, the
    repetition penalty that of CTRL (arXiv:1909.05858). `top_logprobs` is how many of
    the most probable tokens are returned beside the chosen one.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    top_logprobs: int = 0


@dataclass(frozen=True)
class Chunk:
    """A piece of a prompt, put into a slot's cache from position `start` on.

    `start` 0 empties the slot for a new request. With `last` the token behind the piece
    is sampled. Bit v of `mask` (byte v // 8, least significant first) allows token v.
    `prompt` is how many of the request's tokens, from its first, the user gave: what is
    beyond them was generated, which presence and frequency penalties count. With
    `adopt` the slot's tokens before `start` are an earlier request's, and this one's
    too.
    """

    slot: int
    tokens: tuple[int, ...]
    start: int
    last: bool
    request: int
    sampling: Sampling
    mask: bytes | None = None
    prompt: int | None = None
    adopt: bool = False


@dataclass(frozen=True)
class Step:
    """One token of an active slot, at `position`; the one behind it is sampled."""

    slot: int
    token: int
    position: int
    request: int
    sampling: Sampling
    mask: bytes | None = None


@dataclass(frozen=True)
class Tick:
    """What is computed at once: a slot occurs in it at most once."""

    chunks: tuple[Chunk, ...] = ()
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Sampled:
    """A sampled token, its log-probability, and those of the most probable tokens.

    Log-probabilities are of the model's own distribution, before mask, bias, penalties,
    temperature and cuts. Token -1 says that the model gave numbers that are none: the
    request ends with an error, and the slot is clean again when a request begins in it.
    """

    slot: int
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Prepared(Protocol):
    """Other weights that an engine has read, and can serve at once."""

    def close(self) -> None:
        """No engine will serve them."""
        ...


class EngineLost(RuntimeFault):
    """A tick failed on all ranks. After `Engine.recover` every slot is empty."""


class Engine(Protocol):
    """What computes ticks. Its methods are called from one thread."""

    slots: int
    """How many requests are active at once at most."""

    context: int
    """Positions of a slot."""

    vocabulary: int
    """Tokens are from 0 to here."""

    chunk: int
    """Tokens of the largest chunk."""

    model: str
    """The model's name."""

    def tick(self, tick: Tick) -> list[Sampled]:
        """Compute; one result for each last chunk, then for each step, in order.

        Of a step there may be several, one behind the other: the tokens behind its own
        that an engine computed at once. The slot then holds all of them but the last.

        `UsageError` for a tick that contradicts the slots' contents, `EngineLost` when
        a rank was lost.
        """
        ...

    def recover(self) -> None:
        """Be ready again after `EngineLost`, with empty slots."""
        ...

    def prepare(self, folder: str) -> Prepared:
        """Read other weights of the same model, from any thread, while ticks go on.

        `ConfigError` names what does not fit.
        """
        ...

    def swap(self, prepared: Any) -> None:
        """Serve what `prepare` gave from now on, with empty slots."""
        ...

    def close(self) -> None:
        """Release devices and processes."""
        ...

    def describe(self) -> dict[str, Any]:
        """Mesh, ranks, epoch, bytes: for operators, as JSON."""
        ...
