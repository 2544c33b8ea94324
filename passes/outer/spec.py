"""The algorithms that keep workers together, as text and as values.

    parse("diloco{lr=0.7,momentum=0.9}") == DiLoCo(lr=0.7, momentum=0.9)

What they compute is built by `pcp.passes.outer.{diloco,average,ddp,none}`.
"""

from dataclasses import dataclass
from typing import ClassVar

from pcp.passes import spec


@dataclass(frozen=True)
class Momentum(spec.Spec):
    """An outer optimizer with momentum, which several algorithms have.

    lr, momentum: of the outer step. nesterov: look ahead, or plain heavy ball.
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        self.require(self.lr > 0, "lr", "must be positive")
        self.require(0 <= self.momentum < 1, "momentum", "must lie in [0, 1)")


@dataclass(frozen=True)
class DiLoCo(Momentum):
    """Outer momentum on the mean of the workers' deltas (arXiv 2311.08105)."""

    kind: ClassVar[str] = "diloco"


@dataclass(frozen=True)
class Average(spec.Spec):
    """The token-weighted mean of the workers' parameters (local SGD, FedAvg)."""

    kind: ClassVar[str] = "average"


@dataclass(frozen=True)
class DDP(spec.Spec):
    """The token-weighted mean of the workers' gradients, at every step."""

    kind: ClassVar[str] = "ddp"


@dataclass(frozen=True)
class Alone(spec.Spec):
    """One worker: nothing is exchanged."""

    kind: ClassVar[str] = "none"


KINDS: dict[str, type[spec.Spec]] = {
    cls.kind: cls for cls in (DiLoCo, Average, DDP, Alone)
}


def parse(text: str) -> spec.Spec:
    """Read `diloco{lr=0.7}`; `ConfigError` names the nearest kind or key."""
    return spec.parse(text, KINDS, "algorithm")
