"""The optimizers and their hyperparameters, as text and as values.

    parse("adamw{lr=6e-4,weight_decay=0.1}") == AdamW(lr=6e-4, weight_decay=0.1)

What they compute is built by `pcp.passes.training.optimizers`, in a file of each one's
name; `pcp.passes.training.optimizers.groups` gives parameters options of their own.
"""

from dataclasses import dataclass
from typing import ClassVar, cast

from pcp.errors import nearest
from pcp.passes.core import spec

SCHEDULES = ("constant", "warmup_cosine", "wsd")


@dataclass(frozen=True)
class Optimizer(spec.Spec):
    """What all optimizers share: the learning rate over time, and clipping.

    lr: the peak learning rate.
    schedule: `constant`, `warmup_cosine` (down to `min_lr` at `total_steps`), or
        `wsd` (stable, then linear down to `min_lr` over the last `decay_steps`;
        0 means a fifth of `total_steps`).
    warmup_steps: every schedule starts with this many linear steps, k/warmup_steps
        of the peak at step k = 1, 2, ...
    clip_norm: upper bound of the gradients' global 2-norm; 0 leaves them alone.
    weight_decay, decay_min_rank: parameters of lower rank are not decayed.
    """

    lr: float = 1e-3
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    schedule: str = "constant"
    warmup_steps: int = 0
    total_steps: int = 0
    decay_steps: int = 0
    min_lr: float = 0.0
    decay_min_rank: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        hint = nearest(self.schedule, SCHEDULES)
        self.require(
            self.schedule in SCHEDULES,
            "schedule",
            f"known schedules: {', '.join(SCHEDULES)}.{hint}",
        )
        for key in ("lr", "weight_decay", "clip_norm", "min_lr", "warmup_steps"):
            self.require(getattr(self, key) >= 0, key, "must not be negative")
        for key in ("total_steps", "decay_steps", "decay_min_rank"):
            self.require(getattr(self, key) >= 0, key, "must not be negative")
        self._check_horizon()

    def _check_horizon(self) -> None:
        if self.schedule == "constant":
            return
        self.require(
            self.total_steps > self.warmup_steps,
            "total_steps",
            f"{self.schedule} needs the number of steps, above warmup_steps",
        )
        self.require(
            self.schedule != "wsd" or self.decay <= self.total_steps,
            "decay_steps",
            "must not exceed total_steps",
        )

    @property
    def decay(self) -> int:
        """Steps of the final decay of `wsd`."""
        return self.decay_steps or max(1, self.total_steps // 5)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay, as torch.optim.AdamW computes it."""

    kind: ClassVar[str] = "adamw"
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("beta1", "beta2"):
            self.require(0 <= getattr(self, key) < 1, key, "must lie in [0, 1)")
        self.require(self.eps >= 0, "eps", "must not be negative")


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, with momentum (heavy ball) and coupled weight decay."""

    kind: ClassVar[str] = "sgd"
    momentum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.momentum < 1, "momentum", "must lie in [0, 1)")


@dataclass(frozen=True)
class Nesterov(Optimizer):
    """Nesterov's momentum, as torch.optim.SGD(nesterov=True) computes it."""

    kind: ClassVar[str] = "nesterov"
    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.momentum < 1, "momentum", "must lie in (0, 1)")


@dataclass(frozen=True)
class Lion(Optimizer):
    """The sign of an interpolated momentum, with decoupled weight decay."""

    kind: ClassVar[str] = "lion"
    lr: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("beta1", "beta2"):
            self.require(0 <= getattr(self, key) < 1, key, "must lie in [0, 1)")


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Factored second moments, as torch.optim.Adafactor computes it.

    beta2_decay: the exponent of the step in their rate. eps: the least size of a
    parameter that its step is measured by. d: the largest RMS of an update.
    """

    kind: ClassVar[str] = "adafactor"
    lr: float = 1e-2
    beta2_decay: float = -0.8
    eps: float = 1e-3
    d: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.beta2_decay <= 0, "beta2_decay", "must not be positive")
        self.require(self.eps >= 0, "eps", "must not be negative")
        self.require(self.d > 0, "d", "must be positive")


@dataclass(frozen=True)
class Muon(Optimizer):
    """Orthogonalised momentum for hidden matrices, AdamW for all else.

    Hidden matrices have rank 2 or more and no name that a pattern of `others`
    (separated by |) matches. ns_steps: of Newton-Schulz. adam_lr, adam_beta1,
    adam_beta2: of AdamW, whose eps is 1e-8; schedule and weight decay are shared.
    """

    kind: ClassVar[str] = "muon"
    lr: float = 0.02
    weight_decay: float = 0.01
    momentum: float = 0.95
    nesterov: bool = True
    ns_steps: int = 5
    others: str = "*emb*|*wte*|*wpe*|*token*|*position*|*head*"
    adam_lr: float = 3e-4
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("momentum", "adam_beta1", "adam_beta2"):
            self.require(0 <= getattr(self, key) < 1, key, "must lie in [0, 1)")
        self.require(self.ns_steps > 0, "ns_steps", "must be positive")
        self.require(self.adam_lr >= 0, "adam_lr", "must not be negative")


@dataclass(frozen=True)
class Imported(spec.Spec):
    """A user's own optimizer, as `pcp.from_optax` gives it: its options are inside."""


KINDS: dict[str, type[spec.Spec]] = {
    cls.kind: cls for cls in (AdamW, SGD, Nesterov, Muon, Lion, Adafactor)
}


def parse(text: str) -> Optimizer:
    """Read `adamw{lr=6e-4}`; `ConfigError` names the nearest kind or key."""
    return cast(Optimizer, spec.parse(text, KINDS, "optimizer"))
