"""The algorithms that keep workers together, as text and as values.

    parse("diloco{lr=0.7,momentum=0.9}") == DiLoCo(lr=0.7, momentum=0.9)

What they compute is built by `pcp.passes.training.outer`, in a file of each one's name.
"""

from dataclasses import dataclass
from typing import ClassVar

from pcp.passes.core import spec

WIRES = ("f32", "fp8", "int8", "e3m0", "int2")
"""Plain, or in one of the codecs of `pcp.all_reduce`."""


@dataclass(frozen=True)
class Momentum(spec.Spec):
    """An outer optimizer with momentum, which several algorithms have.

    lr, momentum: of the outer step. nesterov: look ahead, or plain heavy ball.
    """

    lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.lr > 0, "lr", "must be positive")
        self.require(0 <= self.momentum < 1, "momentum", "must lie in [0, 1)")


@dataclass(frozen=True)
class DiLoCo(Momentum):
    """Outer momentum on the mean of the workers' deltas (arXiv 2311.08105).

    mean: weighted by the tokens that each trained on, or trimmed, where not all workers
    are trusted: of each number a quarter of the workers' is left out at either end.
    """

    kind: ClassVar[str] = "diloco"
    mean: str = "weighted"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ("weighted", "trimmed")
        self.require(self.mean in known, "mean", f"must be {' or '.join(known)}")


@dataclass(frozen=True)
class StreamingDiLoCo(Momentum):
    """DiLoCo fragment by fragment, beside the inner steps (arXiv 2501.18512).

    fragments: how many. tau: inner steps that an exchange may take. alpha: how much
    of a worker's own parameters stays when a fragment comes back. wire: in which code
    deltas travel, f32 or one of `pcp.all_reduce`. together: all fragments come back
    at the end of the round, and not each at its own time.
    """

    kind: ClassVar[str] = "streaming_diloco"
    lr: float = 0.4
    fragments: int = 3
    tau: int = 1
    alpha: float = 0.5
    wire: str = "e3m0"
    together: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.fragments > 0, "fragments", "must be positive")
        self.require(self.tau >= 0, "tau", "must be at least 0")
        self.require(0 <= self.alpha <= 1, "alpha", "must lie in [0, 1]")
        self.require(self.wire in WIRES, "wire", f"must be one of {', '.join(WIRES)}")


@dataclass(frozen=True)
class Snoo(Momentum):
    """DiLoCo's outer step for one worker alone (arXiv 2510.15830)."""

    kind: ClassVar[str] = "snoo"


@dataclass(frozen=True)
class AsyncDiLoCo(Momentum):
    """DiLoCo one round late: the exchange takes place beside the inner steps."""

    kind: ClassVar[str] = "async_diloco"
    momentum: float = 0.0


@dataclass(frozen=True)
class MuLoCo(Momentum):
    """DiLoCo with defaults for Muon inside (arXiv 2505.23725).

    wire: `f32`, or `2bit` with error feedback. rho: how much of the error is kept.
    """

    kind: ClassVar[str] = "muloco"
    lr: float = 0.9
    momentum: float = 0.8
    wire: str = "f32"
    rho: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.wire in ("f32", "2bit"), "wire", "must be f32 or 2bit")
        self.require(0 <= self.rho <= 1, "rho", "must lie in [0, 1]")


@dataclass(frozen=True)
class SparseLoCo(spec.Spec):
    """The largest numbers of each tile, with error feedback (arXiv 2508.15706).

    lr: of the outer step. beta: how much of the error is kept. k: how many of each
    4096 are sent. bits: 2 for each, or 32.
    """

    kind: ClassVar[str] = "sparseloco"
    lr: float = 1.0
    beta: float = 0.95
    k: int = 64
    bits: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.lr > 0, "lr", "must be positive")
        self.require(0 <= self.beta <= 1, "beta", "must lie in [0, 1]")
        self.require(1 <= self.k <= 4096, "k", "must lie in 1 ... 4096")
        self.require(self.bits in (2, 32), "bits", "must be 2 or 32")


@dataclass(frozen=True)
class DeMo(spec.Spec):
    """The strongest frequencies of a momentum, in every step (arXiv 2411.19870).

    beta: how much of the residue is kept. k: how many of each tile are sent.
    """

    kind: ClassVar[str] = "demo"
    beta: float = 0.999
    k: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.beta <= 1, "beta", "must lie in [0, 1]")
        self.require(1 <= self.k <= 4096, "k", "must lie in 1 ... 4096")


@dataclass(frozen=True)
class Eager(Momentum):
    """Own progress at once, the others' a round late (arXiv 2502.12996).

    The defaults are stable with any number of workers; diloco's are not with 4 or
    more, where most of what momentum gathers is late.
    """

    kind: ClassVar[str] = "eager"
    lr: float = 0.4
    momentum: float = 0.6


@dataclass(frozen=True)
class NoLoCo(spec.Spec):
    """Gossip in pairs drawn anew each round (arXiv 2506.10911).

    alpha: momentum. beta: of the pair's mean progress. gamma: how strongly a worker
    is drawn to the middle of its pair. seed: of the pairs.
    """

    kind: ClassVar[str] = "noloco"
    alpha: float = 0.5
    beta: float = 0.7
    gamma: float = 0.7
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.alpha < 1, "alpha", "must lie in [0, 1)")
        self.require(self.beta > 0, "beta", "must be positive")
        # Replicas drift apart above 2 for alpha = 0, 1.6 for 0.5, 0.45 for 0.9.
        limit = 2 * (1 - self.alpha**2)
        self.require(0 <= self.gamma < limit, "gamma", f"must lie in [0, {limit:.3g})")
        self.require(self.seed >= 0, "seed", "must be at least 0")


@dataclass(frozen=True)
class Decoupled(Momentum):
    """DiLoCo that averages directions and lengths apart (arXiv 2604.21428).

    radial: do that, or take plain means. own_clocks: learners do not meet; what some
    of them have done is merged when a quorum has come, and the others go on.
    """

    kind: ClassVar[str] = "decoupled"
    radial: bool = True
    own_clocks: bool = False


@dataclass(frozen=True)
class AsyncLocalSGD(spec.Spec):
    """Learners on their own clocks, with delayed momentum (arXiv 2401.09135).

    lr, momentum: of the outer step. period: pushes from one use of the momentum to the
    next; the number of workers is a good one. dylu: inner steps by measured speed.
    """

    kind: ClassVar[str] = "async_local_sgd"
    lr: float = 0.7
    momentum: float = 0.9
    period: int = 4
    dylu: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.lr > 0, "lr", "must be positive")
        self.require(0 <= self.momentum < 1, "momentum", "must lie in [0, 1)")
        self.require(self.period > 0, "period", "must be positive")


@dataclass(frozen=True)
class Slope(spec.Spec):
    """Training by directional slopes: a seed and a scalar on the wire.

    noise: of directions, `normal` or `signs` (-1 and +1). seed: of the directions.
    """

    noise: str = "normal"
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ("normal", "signs")
        self.require(self.noise in known, "noise", "must be normal or signs")
        self.require(self.seed >= 0, "seed", "must be at least 0")


@dataclass(frozen=True)
class MeZO(Slope):
    """Forward passes alone (arXiv 2305.17333). eps: how far to both sides."""

    kind: ClassVar[str] = "mezo"
    eps: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.eps > 0, "eps", "must be positive")


@dataclass(frozen=True)
class ForwardGradient(Slope):
    """A forward pass with tangents in place of a reverse pass (arXiv 2202.08587)."""

    kind: ClassVar[str] = "forward_gradient"


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
    cls.kind: cls
    for cls in (
        DiLoCo,
        StreamingDiLoCo,
        AsyncDiLoCo,
        AsyncLocalSGD,
        Eager,
        Decoupled,
        NoLoCo,
        MuLoCo,
        SparseLoCo,
        DeMo,
        Average,
        DDP,
        MeZO,
        ForwardGradient,
        Snoo,
        Alone,
    )
}


def parse(text: str) -> spec.Spec:
    """Read `diloco{lr=0.7}`; `ConfigError` names the nearest kind or key."""
    return spec.parse(text, KINDS, "algorithm")
