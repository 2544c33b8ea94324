"""StableHLO's collectives: the transpose is a collective over the same groups.

The pairing of cotangents and tangents is summed over all processes, as for pcp's
own collectives (`collectives`). Each op that a rule makes has a channel of its own.
"""

from collections.abc import Sequence

from pcp.autodiff.core.bodies import combiner
from pcp.autodiff.core.cotangents import total
from pcp.autodiff.core.expansion import fresh_channel
from pcp.autodiff.core.kinds import Refusal, Site, Vjp
from pcp.dialect import hlo
from pcp.dialect.bindings import ir, stablehlo

Value = ir.Value


def _handle(at: Site) -> ir.Attribute | None:
    """A new channel of the primal's kind; None where the primal has none."""
    given = at.attribute("channel_handle")
    if given is None:
        return None
    kind = stablehlo.ChannelHandle(given).channel_type
    return stablehlo.ChannelHandle.get(fresh_channel(at.op), kind)


def _collective(
    at: Site, name: str, x: Value, result: ir.Type, **more: ir.Attribute | None
) -> ir.Operation:
    """A collective over the primal's groups."""
    return hlo.op(name, [x], [result], regions=0, channel_handle=_handle(at), **more)


def _groups(at: Site) -> dict[str, ir.Attribute | None]:
    names = ("replica_groups", "use_global_device_ids")
    return {name: at.attribute(name) for name in names}


def _added(at: Site, name: str, x: Value, result: ir.Type, **more: ir.Attribute):
    """`all_reduce` or `reduce_scatter` that adds."""
    made = hlo.op(
        name,
        [x],
        [result],
        regions=1,
        channel_handle=_handle(at),
        **_groups(at),
        **more,
    )
    scalar = hlo.tensor((), hlo.element_type(x))
    hlo.body(made, [scalar, scalar], hlo.add)
    return made.result


def _sum(at: Site, x: Value) -> Value:
    return _added(at, "all_reduce", x, x.type)


def _all_reduce(at: Site) -> list[Value | None]:
    """A sum's is the same of g; of an extremum, members in a tie share."""
    kind = combiner(at.op)
    if kind == "add":
        return [None if g is None else _sum(at, g) for g in at.cotangents]
    if kind not in ("maximum", "minimum"):
        raise at.refuse(
            "only a body that adds or takes the maximum or minimum has a derivative "
            "rule; write all_gather and reduce"
        )
    return [
        None if g is None else _share(at, x, y, g)
        for x, y, g in zip(at.op.operands, at.op.results, at.cotangents, strict=True)
    ]


def _share(at: Site, x: Value, y: Value, g: Value) -> Value:
    hit = hlo.compare("EQ", x, y)
    ties = _sum(at, hlo.convert(hit, hlo.element_type(g)))
    share = hlo.divide(_sum(at, g), ties)
    return hlo.select(hit, share, hlo.zeros(share.type))


def _all_gather(at: Site) -> list[Value | None]:
    """Every process's g of my part, added."""
    dimension = at.attribute("all_gather_dim")
    return [
        None
        if g is None
        else _added(at, "reduce_scatter", g, x.type, scatter_dimension=dimension)
        for x, g in zip(at.op.operands, at.cotangents, strict=True)
    ]


def _reduce_scatter(at: Site) -> list[Value | None]:
    """The parts of g, joined."""
    if combiner(at.op) != "add":
        raise at.refuse("only a body that adds has a derivative rule; use all_reduce")
    joined = _collective(
        at,
        "all_gather",
        at.g,
        at[0].type,
        all_gather_dim=at.attribute("scatter_dimension"),
        **_groups(at),
    )
    return [joined.result]


def _all_to_all(at: Site) -> list[Value | None]:
    """Cut where it was joined, join where it was cut."""

    def back(x: Value, g: Value) -> Value:
        return _collective(
            at,
            "all_to_all",
            g,
            x.type,
            split_dimension=at.attribute("concat_dimension"),
            concat_dimension=at.attribute("split_dimension"),
            split_count=at.attribute("split_count"),
            replica_groups=at.attribute("replica_groups"),
        ).result

    return [
        None if g is None else back(x, g)
        for x, g in zip(at.op.operands, at.cotangents, strict=True)
    ]


def _moved(at: Site, g: Value, pairs: Sequence[Sequence[int]]) -> Value:
    """`collective_permute`: who is nobody's target gets zeros."""
    moved = hlo.i64_matrix(pairs)
    return _collective(
        at, "collective_permute", g, g.type, source_target_pairs=moved
    ).result


def _rows(attribute: ir.Attribute | None) -> list[list[int]] | None:
    """A matrix of integers, or None if it is none (groups named by mesh axes)."""
    if not isinstance(attribute, ir.DenseIntElementsAttr):
        return None
    dense = ir.DenseIntElementsAttr(attribute)
    count, size = ir.ShapedType(dense.type).shape
    flat = [int(n) for n in dense]
    if dense.is_splat:
        flat = flat[:1] * (count * size)
    return [flat[i * size : (i + 1) * size] for i in range(count)]


def _collective_permute(at: Site) -> list[Value | None]:
    """Back from target to source; what nobody sent gets nothing."""
    pairs = _rows(at.attribute("source_target_pairs")) or []
    return [_moved(at, at.g, [pair[::-1] for pair in pairs])]


def _collective_broadcast(at: Site) -> list[Value | None]:
    """Every process's g, added, at the root: the first of its group.

    One permutation for each place in a group, since an all_reduce would read the
    same channel and groups in another way.
    """
    groups = _rows(at.attribute("replica_groups"))
    if groups is None:
        raise at.refuse("its groups are not listed; write replica_groups as a matrix")
    return [
        total(
            [
                _moved(at, at.g, [[row[k], row[0]] for row in groups if row[k] >= 0])
                for k in range(len(groups[0]))
            ]
        )
    ]


RULES = {
    "all_reduce": Vjp(_all_reduce),
    "all_gather": Vjp(_all_gather),
    "reduce_scatter": Vjp(_reduce_scatter),
    "all_to_all": Vjp(_all_to_all),
    "collective_permute": Vjp(_collective_permute),
    "collective_broadcast": Vjp(_collective_broadcast),
    "collective_reduce": Refusal(
        "what others than the root get from it is not specified; use all_reduce"
    ),
    "send": Refusal(
        "an active value leaves the program here, so its derivative is owed by another "
        "one; differentiate before the program is split over processes, or put "
        "pcp.stop_gradient on what is sent",
        boundary=True,
    ),
    "recv": Refusal(
        "a derivative flows to what is received here and is owed to another program; "
        "differentiate before the program is split over processes, or put "
        "pcp.stop_gradient on what is received",
        boundary=True,
    ),
}
