"""pcp's collectives: the transpose of a distributed program is distributed.

The pairing of cotangents and tangents is summed over all members. So the loss that
is differentiated is the sum of what the members return, and the transpose of a sum
over the group is a sum over the group.
"""

from collections.abc import Sequence

from pcp.autodiff.core.kinds import Linear, NoGradient, Refusal, Site, Vjp
from pcp.dialect import hlo
from pcp.dialect.bindings import ir

Value = ir.Value

#: Attributes that say who takes part, and how it travels.
_GROUP = ("mesh", "axes", "wire", "ordered")


def _collective(at: Site, name: str, x: Value, result: ir.Type, **more: ir.Attribute):
    """A collective over the same group as the primal's."""
    kept = {key: at.attribute(key) for key in _GROUP}
    return hlo.op(f"pcp.{name}", [x], [result], **kept, **more).result


def _kind(at: Site) -> str:
    return ir.StringAttr(at.attribute("kind")).value


def _reduced(at: Site, x: Value, kind: str) -> Value:
    return _collective(at, "all_reduce", x, x.type, kind=ir.StringAttr.get(kind))


def _all_reduce(at: Site) -> Sequence[Value | None]:
    """A sum's or mean's is the same of g; of an extremum, members in a tie share."""
    kind = _kind(at)
    if kind in ("sum", "mean"):
        return [_reduced(at, at.g, kind)]
    if kind not in ("max", "min"):
        raise at.refuse(f'kind "{kind}" has no derivative rule; gather and reduce')
    hit = hlo.compare("EQ", at[0], at.y)
    ties = _reduced(at, hlo.convert(hit, hlo.element_type(at.g)), "sum")
    share = hlo.divide(_reduced(at, at.g, "sum"), ties)
    return [hlo.select(hit, share, hlo.zeros(share.type))]


def _all_gather(at: Site, g: Value) -> Value:
    """Every member's g of my part, added."""
    return _collective(
        at,
        "reduce_scatter",
        g,
        at[0].type,
        kind=ir.StringAttr.get("sum"),
        dim=at.attribute("dim"),
        sizes=at.attribute("sizes"),
    )


def _reduce_scatter(at: Site) -> Sequence[Value | None]:
    """The parts of g, joined; a mean's divided by the number of members."""
    kind = _kind(at)
    if kind not in ("sum", "mean"):
        raise at.refuse(f'kind "{kind}" has no derivative rule; use all_reduce')
    g = _collective(
        at,
        "all_gather",
        at.g,
        at[0].type,
        dim=at.attribute("dim"),
        sizes=at.attribute("sizes"),
    )
    if kind == "sum":
        return [g]
    if len(ir.ArrayAttr(at.attribute("sizes"))):
        members = len(ir.ArrayAttr(at.attribute("sizes")))
    else:
        d = at.int("dim")
        members = hlo.shape_of(at[0])[d] // hlo.shape_of(at.y)[d]
    return [hlo.multiply(g, hlo.constant_like(g, 1.0 / members))]


def _all_to_all(at: Site, g: Value) -> Value:
    """Cut where it was joined, join where it was cut."""
    return _collective(
        at,
        "all_to_all",
        g,
        at[0].type,
        split=at.attribute("concat"),
        concat=at.attribute("split"),
    )


def _broadcast(at: Site, g: Value) -> Value:
    """Every member's g, added, at the root; a permutation leaves others zeros."""
    root = at.attribute("root")
    pairs = ir.ArrayAttr.get([ir.ArrayAttr.get([root, root])])
    total = _reduced(at, g, "sum")
    return _collective(at, "permute", total, total.type, pairs=pairs)


def _permute(at: Site, g: Value) -> Value:
    """Back from target to source; what nobody sent gets nothing."""
    swapped = [
        ir.ArrayAttr.get(list(ir.ArrayAttr(pair))[::-1])
        for pair in ir.ArrayAttr(at.attribute("pairs"))
    ]
    pairs = ir.ArrayAttr.get(swapped)
    return _collective(at, "permute", g, at[0].type, pairs=pairs)


def _constraint(at: Site, g: Value) -> Value:
    sharding = at.attribute("sharding")
    return hlo.op("pcp.constraint", [g], [g.type], sharding=sharding).result


RULES = {
    "pcp.all_reduce": Vjp(_all_reduce),
    "pcp.all_gather": Linear(_all_gather),
    "pcp.reduce_scatter": Vjp(_reduce_scatter),
    "pcp.all_to_all": Linear(_all_to_all),
    "pcp.permute": Linear(_permute),
    "pcp.broadcast": Linear(_broadcast),
    "pcp.send": Refusal(
        "an active value leaves the program here, so its derivative is owed by another "
        "device's; differentiate before the program is split over devices, or put "
        "pcp.stop_gradient on what is sent",
        boundary=True,
    ),
    "pcp.recv": Refusal(
        "a derivative flows to what is received here and belongs to another device's "
        "program; differentiate before the program is split over devices, or put "
        "pcp.stop_gradient on what is received",
        boundary=True,
    ),
    # --- shardings: what is said of a value holds for its cotangent too ---
    "pcp.constraint": Linear(_constraint),
    "pcp.reshard": Linear(lambda at, g: g),
    "pcp.barrier_prop": Linear(lambda at, g: g),
    "pcp.sharding_group": NoGradient("it changes no value"),
    # --- what a plan adds behind differentiation ---
    "pcp.transfer": Refusal(
        "a value moves to another device; differentiate before the program is split"
    ),
    "pcp.schedule": Refusal(
        "its tasks are placed on devices already; differentiate a function of whole "
        "tensors, and place what that gives"
    ),
    "builtin.unrealized_conversion_cast": Refusal(
        "a value is placed on a device here, taken from one, or put into a tuple; "
        "differentiate before that"
    ),
    "pcp.microbatch": Refusal(
        "it is differentiated as a loop; run pcp-accumulate before"
    ),
    "pcp.param_sync": Refusal(
        "whose values members take is decided at run time; synchronize outside of "
        "what is differentiated, or put pcp.stop_gradient on the operands"
    ),
    "pcp.parity": NoGradient("it changes no value"),
    "pcp.sync": NoGradient("it changes no value"),
    "pcp.digest": NoGradient("a digest is made of bits"),
    "pcp.stop_gradient": NoGradient("the program says so"),
}
