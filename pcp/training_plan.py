"""How a bundle is trained: what its members exchange, and when.

    never         one member trains alone
    step          gradients, or slopes, in every inner step
    round         once, when the inner steps of a round are made
    fragment      piece by piece, beside the inner steps of a round
    asynchronous  each member when it is done, with the newest state

Each outer algorithm states its plan in `pcp.passes.training.outer`. The compiler writes
it into the manifest, and what trains a bundle reads it there.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

FRAGMENT_FUNCTIONS = ("outer_send", "outer_exchange", "outer_apply")
"""What each fragment has, with its number behind."""


class _Plan(BaseModel):
    """What all plans answer. Immutable, and no key that this version does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions that a bundle of this plan has, besides @init to @eval."""
        return ()

    @property
    def exchanges_inside(self) -> bool:
        """Whether members exchange between inner steps, before a round ends."""
        return False

    @property
    def in_background(self) -> bool:
        """Whether an exchange runs beside the inner steps."""
        return False

    @property
    def in_pairs(self) -> bool:
        """Whether members exchange in pairs, not all with all."""
        return False

    @property
    def deltas_keep(self) -> bool:
        """Whether a member's delta may enter a later round than its own."""
        return False


class Never(_Plan):
    """Nothing is exchanged: a round has one member.

    outer_step: whether `@outer_step` follows the inner steps of a round.
    """

    synchronize: Literal["never"] = "never"
    outer_step: bool = False

    @property
    def functions(self) -> tuple[str, ...]:
        """`@outer_step`, if there is one."""
        return ("outer_step",) if self.outer_step else ()


class EveryStep(_Plan):
    """`@grad_sync` turns members' gradients into one, in every inner step.

    With the estimator `slope` a member knows one number, how the loss changes along a
    direction that is drawn from `seed`.
    """

    synchronize: Literal["step"] = "step"
    estimator: Literal["gradient", "slope"] = "gradient"
    seed: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _check_seed(self) -> Self:
        _check_seed(self.seed, self.estimator == "slope", "the estimator slope")
        return self

    @property
    def functions(self) -> tuple[str, ...]:
        """`@grad_sync`."""
        return ("grad_sync",)

    @property
    def exchanges_inside(self) -> bool:
        """True."""
        return True


class EveryRound(_Plan):
    """`@outer_step` when the inner steps of a round are made.

    overlap: what a round made is exchanged by `@outer_early`, beside the inner steps of
    the next one. parameters: `shared` where all members agree on them, `replica` where
    each has its own, `gossip` where members besides exchange in pairs, which are drawn
    from `seed` and the round.
    """

    synchronize: Literal["round"] = "round"
    overlap: bool = False
    parameters: Literal["shared", "replica", "gossip"] = "shared"
    seed: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _check_seed(self) -> Self:
        _check_seed(self.seed, self.parameters == "gossip", "gossip")
        return self

    @property
    def functions(self) -> tuple[str, ...]:
        """`@outer_step`, and `@outer_early` with overlap."""
        return ("outer_step", "outer_early") if self.overlap else ("outer_step",)

    @property
    def in_background(self) -> bool:
        """With overlap."""
        return self.overlap

    @property
    def in_pairs(self) -> bool:
        """With gossip."""
        return self.parameters == "gossip"

    @property
    def deltas_keep(self) -> bool:
        """Where a delta is against parameters of all, and exchanged in its round."""
        return self.parameters == "shared" and not self.overlap


class Fragments(_Plan):
    """The outer step of `count` fragments, each at its own time in a round.

    delay: inner steps from a fragment's leaving to its coming back. together: all come
    back at the end of the round.
    """

    synchronize: Literal["fragment"] = "fragment"
    count: int = Field(gt=0)
    delay: int = Field(default=0, ge=0)
    together: bool = False

    @property
    def functions(self) -> tuple[str, ...]:
        """`@outer_send_p`, `@outer_exchange_p` and `@outer_apply_p` for each p."""
        numbers = range(self.count)
        return tuple(f"{name}_{p}" for p in numbers for name in FRAGMENT_FUNCTIONS)

    @property
    def exchanges_inside(self) -> bool:
        """True."""
        return True

    @property
    def in_background(self) -> bool:
        """True."""
        return True


class Asynchronous(_Plan):
    """`@outer_step` on the newest state, by each member when its steps are made.

    dynamic_steps: a slow member makes fewer inner steps, by its measured speed.
    """

    synchronize: Literal["asynchronous"] = "asynchronous"
    dynamic_steps: bool = False

    @property
    def functions(self) -> tuple[str, ...]:
        """`@outer_step`."""
        return ("outer_step",)


TrainingPlan = Annotated[
    Never | EveryStep | EveryRound | Fragments | Asynchronous,
    Field(discriminator="synchronize"),
]


def _check_seed(seed: int | None, drawn: bool, what: str) -> None:
    if (seed is not None) != drawn:
        raise ValueError(f"a seed goes with {what}, and with nothing else")
