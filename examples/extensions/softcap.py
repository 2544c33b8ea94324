"""An extension: an op with its derivative and lowering, an optimizer, an algorithm.

    pcp-opt --load examples/extensions/softcap.py --show-dialects
    pcp-compile model.mlir --target cpu --load examples/extensions/softcap.py \
        --optimizer 'signum{lr=1e-3}' --algorithm 'damped{pull=0.5}'

`example.softcap` keeps logits between -cap and +cap, as Gemma: cap · tanh(x / cap).
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import pcp
from pcp.autodiff.core.kinds import Elementwise
from pcp.dialect import hlo
from pcp.dialect.bindings import ext, ir
from pcp.passes import Pass
from pcp.passes.core.spec import Spec
from pcp.passes.core.walk import walk
from pcp.passes.training.optimizers.numbers import scale
from pcp.passes.training.optimizers.rule import Clock, OptimizerRule, clipped, shrunk
from pcp.passes.training.optimizers.spec import Optimizer
from pcp.passes.training.outer.diloco import less, moved
from pcp.passes.training.outer.parts.group import weighted_mean
from pcp.passes.training.outer.rule import OuterRound, OuterRule, Tensors

Value = ir.Value
CAP = 30.0


# --- a dialect with one op, its derivative and its lowering ---


class Example(ext.Dialect, name="example"):
    """Ops of this file."""


# `ext` reads the keywords, and its type stubs do not know them.
class SoftCap(Example.Operation, name="softcap", traits=[ext.Pure]):  # pyright: ignore[reportCallIssue]
    """%y = "example.softcap"(%x) : (tensor<4xf32>) -> tensor<4xf32>"""

    operand: ext.Operand[Any]
    result: ext.Result[Any]


def softcap(x: Value) -> Value:
    """cap · tanh(x / cap)."""
    return scale(hlo.tanh(scale(x, 1 / CAP)), CAP)


def softcap_derivative(g: Value, x: Value, y: Value) -> Value:
    """g · (1 - (y / cap)²)."""
    share = scale(y, 1 / CAP)
    one = hlo.constant_like(share, 1.0)
    return hlo.multiply(g, hlo.subtract(one, hlo.multiply(share, share)))


@dataclass(frozen=True)
class LowerExample(Pass):
    """`example.softcap` as StableHLO."""

    name = "lower-example"

    def run(self, module: ir.Module) -> None:
        for function in module.body.operations:
            for region in function.operation.regions:
                for block in region.blocks:
                    for op in list(walk(block)):
                        if op.name == "example.softcap":
                            _lower(op)


def _lower(op: ir.Operation) -> None:
    with op.location, ir.InsertionPoint(op):
        op.results[0].replace_all_uses_with(softcap(op.operands[0]))
    op.erase()


# --- an optimizer: the sign of a momentum (arXiv 1802.04434) ---


@dataclass(frozen=True)
class Signum(Optimizer):
    """m <- β m + (1 - β) g        p <- (1 - η λ) p - η sign(m)"""

    kind: ClassVar[str] = "signum"
    beta: float = 0.9


def signum(
    spec: Signum, clock: Clock, p: Value, g: Value, m: Value
) -> tuple[Value, ...]:
    """New parameter and momentum."""
    m = hlo.add(scale(m, spec.beta), scale(clipped(clock, g), 1 - spec.beta))
    step = scale(hlo.sign(m), clock.lr)
    return hlo.subtract(shrunk(spec, clock, p), step), m


# --- an outer algorithm: a part of the way to the workers' mean ---


@dataclass(frozen=True)
class Damped(Spec):
    """θ <- θ - pull · mean of (θ - θ_m)"""

    kind: ClassVar[str] = "damped"
    pull: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.pull <= 1, "pull", "must lie in (0, 1]")


def damped(spec: Damped, now: OuterRound) -> tuple[list[Value], Tensors]:
    """New parameters; there is no state."""
    deltas = weighted_mean(moved(now), now.tokens, over=now.over)
    pairs = zip(now.anchors, deltas, strict=True)
    return [less(anchor, scale(d, spec.pull)) for anchor, d in pairs], {}


EXTENSION = pcp.Extension(
    dialects=(Example,),
    passes=(LowerExample,),
    rules={"example.softcap": Elementwise(softcap_derivative)},
    sharding={"example.softcap": "([...])->([...])"},
    optimizers={Signum: OptimizerRule(slots=lambda spec: ("m",), update=signum)},
    algorithms={Damped: OuterRule(step=damped, shards=True)},
    lowering=("lower-example",),
)
