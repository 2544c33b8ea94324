"""The body of @apply: each parameter by its own rule, all at one step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pcp.dialect import hlo
from pcp.dialect.bindings import ir
from pcp.errors import PassError
from pcp.passes.core import spec as specs
from pcp.passes.core.functions import Port
from pcp.passes.training.optimizers import clip, numbers, rounding
from pcp.passes.training.optimizers.groups import Groups
from pcp.passes.training.optimizers.rule import OptimizerRule, clock
from pcp.passes.training.optimizers.spec import Optimizer

Value = ir.Value


@dataclass(frozen=True)
class Trained:
    """A parameter, the optimizer that trains it, and what that keeps for it."""

    param: Port
    spec: Optimizer
    rule: OptimizerRule
    kept: Sequence[tuple[str, ir.Type]]


def rule_of(spec: Optimizer) -> OptimizerRule:
    """The update rule of a spec."""
    return specs.rule_of(spec, "pcp.passes.training.optimizers")


def assign(groups: Groups, params: Sequence[Port]) -> list[Trained]:
    """Each parameter's optimizer; `PassError` for a pattern that matches none."""
    if idle := groups.idle([p.name for p in params]):
        known = ", ".join(p.name for p in params[:8])
        more = ", ..." if len(params) > 8 else ""
        raise PassError(
            f"the optimizer's pattern {idle[0]!r} matches no parameter ({known}{more})"
        )
    return [_trained(groups, p) for p in params]


def _trained(groups: Groups, param: Port) -> Trained:
    spec = groups.of(param.name, len(hlo.shape_of(param.type)))
    rule = rule_of(spec)
    element = numbers.math_type(hlo.element_type(param.type))
    return Trained(
        param, spec, rule, rule.kept(spec, hlo.like(param.type, element=element))
    )


def ports(trained: Sequence[Trained]) -> list[Port]:
    """The state of all parameters: all tensors of one name together."""
    return [
        Port(f"{name}.{t.param.name}", "state", type_)
        for t, name, type_ in _kept(trained)
    ]


def _kept(trained: Sequence[Trained]) -> Iterator[tuple[Trained, str, ir.Type]]:
    names = dict.fromkeys(name for t in trained for name, _ in t.kept)
    for wanted in names:
        for t in trained:
            for name, type_ in t.kept:
                if name == wanted:
                    yield t, name, type_


def updates(
    groups: Groups,
    trained: Sequence[Trained],
    step: Value,
    params: Sequence[Value],
    grads: Sequence[Value],
    kept: Sequence[Value],
    rounded: rounding.Rounding = rounding.nearest,
) -> list[Value]:
    """New parameters, then the new state in the order of `ports`."""
    bound = groups.default.clip_norm
    grads = [numbers.widen(g) for g in grads]
    factor = clip.clip_factor(grads, bound) if bound else None
    old = dict(
        zip(((t.param.name, n) for t, n, _ in _kept(trained)), kept, strict=True)
    )
    shared: dict[tuple[Optimizer, str], Any] = {}
    new: list[Value] = []
    for i, (t, p, g) in enumerate(zip(trained, params, grads, strict=True)):
        wide = numbers.widen(p)
        element = hlo.element_type(wide)
        key = (t.spec, str(element))
        if key not in shared:
            shared[key] = t.rule.before(t.spec, clock(t.spec, step, element, factor))
        own = [(t.param.name, name) for name, _ in t.kept]
        value, *rest = t.rule.update(
            t.spec, shared[key], wide, g, *(old[k] for k in own)
        )
        new.append(rounded(i, value, hlo.element_type(p)))
        old |= zip(own, rest, strict=True)
    return [*new, *old.values()]
