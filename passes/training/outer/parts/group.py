"""What outer algorithms share: the workers' mesh, and means over it.

The mesh has one elastic axis: who is in it is decided at run time, for each round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pcp.dialect import collectives, hlo
from pcp.dialect.attributes import ELASTIC, Axis
from pcp.dialect.bindings import ir
from pcp.mesh import WORKERS
from pcp.passes.sharding.mesh import is_elastic
from pcp.passes.training.optimizers.numbers import like, scale, widen

Value = ir.Value

AXIS = WORKERS
PAIR = "pair"
"""The axis of gossip: a worker's partner of the round, and itself."""


def mesh_of(axis: str) -> str:
    """The name of the mesh that has this axis."""
    return f"{axis}_mesh"


MESH = mesh_of(AXIS)


@dataclass(frozen=True)
class Over:
    """The members that a sum is over: axes of a mesh.

    ordered: each device has a program of its own by now, so that no sum may be dropped.
    """

    mesh: str
    axes: tuple[str, ...]
    ordered: bool = False


EVERYONE = Over(MESH, (AXIS,))
PARTNERS = Over(mesh_of(PAIR), (PAIR,))


def declare_mesh(module: ir.Module, name: str = AXIS) -> None:
    """Put the workers' mesh at the top of the module, or that of another axis."""
    i64 = ir.IntegerType.get_signless(64, context=module.context)
    with ir.InsertionPoint.at_block_begin(module.body), module.operation.location:
        axis = Axis.get(ir.StringAttr.get(name), ir.IntegerAttr.get(i64, ELASTIC))
        ir.Operation.create(
            "pcp.mesh",
            attributes={
                "sym_name": ir.StringAttr.get(mesh_of(name)),
                "axes": ir.ArrayAttr.get([axis]),
                "devices": ir.ArrayAttr.get([]),
            },
        )


def sum_over_workers(
    x: Value, codec: str | None = None, over: Over = EVERYONE
) -> Value:
    """Σ over the members of the round; f32 travels in `codec`, if one is named."""
    coded = codec is not None and isinstance(hlo.element_type(x), ir.F32Type)
    flags: dict[str, ir.Attribute] = (
        {"codec": ir.StringAttr.get(codec)} if coded else {}
    )
    return _reduced(x, "sum", over, **flags)


def _reduced(x: Value, kind: str, over: Over, **flags: ir.Attribute) -> Value:
    if over.ordered:
        flags["ordered"] = ir.UnitAttr.get()
    return collectives.all_reduce(x, mesh=over.mesh, axes=over.axes, kind=kind, **flags)


def weighted_mean(
    tensors: Sequence[Value],
    tokens: Value,
    codec: str | None = None,
    over: Over = EVERYONE,
) -> list[Value]:
    """Σ_m t_m x_m / Σ_m t_m for each tensor, in its math type.

    `tokens` is this worker's t_m, a rank-0 f32, in units of the most that a member has:
    so one worker, or two with equal counts, get the exact mean. All tensors of an
    element type travel as one, and t_m with them: a sum of its own costs distant
    members a vote more. It has one, and goes first, where tensors travel in a code.
    """
    wide = [*map(widen, tensors)]
    if codec is not None:
        share = hlo.divide(tokens, sum_over_workers(tokens, over=over))
        return in_buckets([scale(x, converted(share, x)) for x in wide], codec, over)
    weighted = [scale(x, converted(tokens, x)) for x in wide]
    own = converted(tokens, weighted[0])
    *sums, total = in_buckets([*weighted, own], over=over)
    return [hlo.divide(x, like(converted(total, x), x)) for x in sums]


def converted(number: Value, x: Value) -> Value:
    """A number in the element type of x."""
    return hlo.convert(number, hlo.element_type(x))


def trimmed_mean(tensors: Sequence[Value], over: Over = EVERYONE) -> list[Value]:
    """The mean of each tensor without the extremes of each number, in its math type.

    All count alike, however many tokens they trained on, and a quarter of the workers
    may say what they like (Yin et al., arXiv 1803.01498). Each gets what all others
    have.
    """
    return _row_by_row(
        list(map(widen, tensors)), lambda x: _reduced(x, "trimmed_mean", over)
    )


def in_buckets(
    tensors: Sequence[Value], codec: str | None = None, over: Over = EVERYONE
) -> list[Value]:
    """Each tensor summed over the workers, in one collective an element type.

    In a program that is to be spread over a mesh each goes alone: of a row of them all
    no member would hold a part. pcp-bucket-collectives joins the members' parts.
    """
    return _row_by_row(tensors, lambda x: sum_over_workers(x, codec, over))


def _row_by_row(
    tensors: Sequence[Value], reduced: Callable[[Value], Value]
) -> list[Value]:
    if tensors and is_spread():
        return list(map(reduced, tensors))
    kinds = list(dict.fromkeys(str(hlo.element_type(x)) for x in tensors))
    results: dict[int, Value] = {}
    for kind in kinds:
        members = [i for i, x in enumerate(tensors) if str(hlo.element_type(x)) == kind]
        summed = reduced(pack([tensors[i] for i in members]))
        shapes = [hlo.shape_of(tensors[i]) for i in members]
        results |= zip(members, unpack(summed, shapes), strict=True)
    return [results[i] for i in range(len(tensors))]


def is_spread() -> bool:
    """Whether the module that is built here has a mesh to be partitioned over."""
    op = ir.InsertionPoint.current.block.owner
    while op.operation.parent is not None:
        op = op.operation.parent
    return any(
        view.operation.name == "pcp.mesh" and not is_elastic(view.operation)
        for view in op.operation.regions[0].blocks[0].operations
    )


def pack(tensors: Sequence[Value]) -> Value:
    """All elements in one row."""
    rows = [hlo.reshape(x, [hlo.size(x)]) for x in tensors]
    return rows[0] if len(rows) == 1 else hlo.concatenate(rows, 0)


def unpack(row: Value, shapes: Sequence[tuple[int, ...]]) -> list[Value]:
    """The tensors of `shapes` that `pack` put into `row`."""
    counts = [hlo.size(hlo.tensor(shape, hlo.element_type(row))) for shape in shapes]
    starts = accumulate(counts[:-1], initial=0)
    return [
        hlo.reshape(_piece(row, start, count), shape)
        for start, count, shape in zip(starts, counts, shapes, strict=True)
    ]


def _piece(row: Value, start: int, count: int) -> Value:
    if count == hlo.size(row):
        return row
    return hlo.slice_(row, [start], [start + count])
