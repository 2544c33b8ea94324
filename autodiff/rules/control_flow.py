"""Control flow, calls out of the program, and what brings values in or out of it.

Branches and loops have files of their own.
"""

from collections.abc import Sequence

from pcp.autodiff.core import registry
from pcp.autodiff.core.kinds import NoGradient, Site, Vjp
from pcp.autodiff.loops.cut_loops import segmented
from pcp.autodiff.rules.branches import branches, branches_forward
from pcp.autodiff.rules.while_loops import while_, while_forward
from pcp.dialect.bindings import ir
from pcp.passes.core.host_calls import ADVICE, is_host_call

Value = ir.Value

#: Targets that only annotate their operand.
_ANNOTATIONS = frozenset({"Sharding", "annotate_device_placement"})


def _custom_call(at: Site) -> Sequence[Value | None]:
    """By target: a rule registered for it, an annotation, or an error."""
    target = ir.StringAttr(at.attribute("call_target_name")).value
    if (rule := registry.find(f"custom_call:{target}")) is not None:
        return rule.vjp(at)
    if target in _ANNOTATIONS and len(at.inputs) == 1:
        return [at.g]
    if is_host_call(at.op):
        raise at.refuse(f'no derivative rule for the custom call "{target}"; {ADVICE}')
    raise at.refuse(
        f'no derivative rule for the custom call "{target}"; register one as '
        f'"custom_call:{target}" with pcp.autodiff.register, or write '
        "the computation in StableHLO"
    )


_no_input = NoGradient("it has no differentiable input")

RULES = {
    "case": Vjp(branches, branches_forward),
    "if": Vjp(branches, branches_forward),
    "while": Vjp(while_, while_forward, segmented),
    "custom_call": Vjp(_custom_call),
    "after_all": NoGradient("tokens order effects and carry no value"),
    "create_token": _no_input,
    "infeed": _no_input,
    "outfeed": NoGradient("the host reads it; no result depends on it"),
    "partition_id": _no_input,
    "replica_id": _no_input,
    "rng_bit_generator": NoGradient("random bits do not depend on real inputs"),
    "rng": NoGradient("a sample's bounds are taken as constants, as jax does"),
}
