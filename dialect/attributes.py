"""The types and attributes of pcp, and Python's view of them.

IRDL attributes have no verifier in Python: the ops that carry them check them.
"""

from collections.abc import Sequence

from pcp.dialect.base import Pcp, as_integers, as_strings, require
from pcp.dialect.bindings import ir
from pcp.dialect.bundles import elements

SHARDING = "pcp.sharding"
"""On functions' arguments and results; on ops an array, one entry a result."""

ELASTIC = -1
"""Size of a mesh axis whose members are decided while running."""


# --- types ---


class Token(Pcp.Type, name="token"):
    """`!pcp.token`: an order between effects, and nothing else."""


class Future(Pcp.Type, name="future"):
    """`!pcp.future<T>`: a started collective, waited for exactly once.

    `T` is what `pcp.wait` gives; `tuple<...>` when that is several values.
    """

    payload: ir.TypeAttr


class On(Pcp.Type, name="on"):
    """`!pcp.on<T, @device>`: a tensor placed on a device or stage."""

    payload: ir.TypeAttr
    device: ir.FlatSymbolRefAttr


def payload_types(future: ir.Type) -> list[ir.Type]:
    """What waiting for a future gives: one type, or those of its tuple."""
    return elements(unwrap(future.payload))


def future_of(types: Sequence[ir.Type]) -> ir.Type:
    """The future of a collective with these results."""
    payload = types[0] if len(types) == 1 else ir.TupleType.get_tuple(list(types))
    return Future.get(payload)


def unwrap(attribute: ir.Attribute | ir.Type) -> ir.Type:
    """The type in a type parameter."""
    if isinstance(attribute, ir.Type):
        return attribute
    return ir.TypeAttr(attribute).value


# --- attributes ---


class Axis(Pcp.Attribute, name="axis"):
    """`#pcp.axis<"dp", 2>`: a mesh axis; size -1 is elastic."""

    axis_name: ir.StringAttr
    size: ir.IntegerAttr


class Dim(Pcp.Attribute, name="dim"):
    """`#pcp.dim<["dp"], 1, 0>`: axes major to minor, closed (0 or 1), priority."""

    axes: ir.ArrayAttr
    closed: ir.IntegerAttr
    priority: ir.IntegerAttr


class Sharding(Pcp.Attribute, name="sharding"):
    """`#pcp.sharding<@mesh, [dims], [replicated], [unreduced]>`: how a tensor lies.

    A dim is a `#pcp.dim` or a plain list of axes (closed, priority 0). Over
    unreduced axes each member holds a partial sum.
    """

    mesh: ir.FlatSymbolRefAttr
    dims: ir.ArrayAttr
    replicated: ir.ArrayAttr
    unreduced: ir.ArrayAttr


class Split(Pcp.Attribute, name="split"):
    """`#pcp.split<"dp", [6, 2]>`: uneven sizes along an axis, one per member."""

    axis: ir.StringAttr
    sizes: ir.ArrayAttr


class Precision(Pcp.Attribute, name="precision"):
    """`#pcp.precision<bf16, f32, f32>`: compute, accumulate and wire types."""

    compute: ir.TypeAttr
    accumulate: ir.TypeAttr
    wire: ir.TypeAttr


# --- reading them ---


def axis_sizes(axes: ir.Attribute) -> dict[str, int]:
    """The axes of a mesh, in order, with their sizes; checks each one."""
    sizes: dict[str, int] = {}
    for axis in ir.ArrayAttr(axes):
        require(
            isinstance(axis, Axis), f'axes are written #pcp.axis<"dp", 2>, not {axis}'
        )
        name = ir.StringAttr(axis.axis_name).value
        size = ir.IntegerAttr(axis.size).value
        require(name, "an axis needs a name")
        require(name not in sizes, f'axis "{name}" occurs twice')
        require(
            size >= 1 or size == ELASTIC,
            f'axis "{name}" has size {size}; a size is at least 1, or -1 for elastic',
        )
        sizes[name] = size
    return sizes


def sharding_dims(sharding: Sharding) -> list[list[str]]:
    """The axes of each dimension, major to minor."""
    return [
        as_strings(dim.axes if isinstance(dim, Dim) else dim, "dims")
        for dim in ir.ArrayAttr(sharding.dims)
    ]


def sharding_axes(sharding: Sharding) -> list[str]:
    """Every axis a sharding mentions: dims, replicated, unreduced."""
    rest = [
        *as_strings(sharding.replicated, "replicated"),
        *as_strings(sharding.unreduced, "unreduced"),
    ]
    return [axis for dim in sharding_dims(sharding) for axis in dim] + rest


def check_kind(attribute: ir.Attribute) -> None:
    """Raise `Invalid` unless `attribute` is a sharding, of whatever tensor."""
    require(
        isinstance(attribute, Sharding),
        f"a sharding is written #pcp.sharding<@mesh, [dims], [], []>, not {attribute}",
    )
    for dim in ir.ArrayAttr(attribute.dims):
        if isinstance(dim, Dim):
            closed, priority = (
                ir.IntegerAttr(a).value for a in (dim.closed, dim.priority)
            )
            require(closed in (0, 1), f"a dim's 'closed' is 0 or 1, not {closed}")
            require(priority >= 0, f"a dim's priority is at least 0, not {priority}")
    sharding_axes(attribute)


def check_sharding(attribute: ir.Attribute, type_: ir.Type) -> None:
    """Raise `Invalid` unless `attribute` is a sharding that fits a tensor type."""
    check_kind(attribute)
    require(isinstance(type_, ir.RankedTensorType), f"{type_} cannot be sharded")
    dims = sharding_dims(attribute)
    rank = ir.RankedTensorType(type_).rank
    require(
        len(dims) == rank, f"the sharding has {len(dims)} dims and {type_} has {rank}"
    )
    axes = sharding_axes(attribute)
    twice = sorted({axis for axis in axes if axes.count(axis) > 1})
    require(not twice, f"the sharding uses axis {', '.join(map(repr, twice))} twice")


def check_split(attribute: ir.Attribute, axes: dict[str, int]) -> None:
    """Raise `Invalid` unless `attribute` splits one of `axes`."""
    require(
        isinstance(attribute, Split),
        f'a split is written #pcp.split<"dp", [6, 2]>, not {attribute}',
    )
    axis = ir.StringAttr(attribute.axis).value
    sizes = as_integers(attribute.sizes, "split")
    require(axis in axes, f'the split names axis "{axis}", which the mesh has not')
    require(
        len(sizes) == axes[axis],
        f'the split of axis "{axis}" has {len(sizes)} sizes for {axes[axis]} members',
    )
    require(min(sizes, default=0) >= 0, "a split's sizes are at least 0")
    require(sum(sizes) > 0, "a split's sizes are all 0")


#: The types in which a device may multiply f32.
COMPUTE = ("f32", "bf16", "f16")


def check_precision(attribute: ir.Attribute) -> None:
    """Raise `Invalid` unless `attribute` is a precision that a device can have."""
    require(
        isinstance(attribute, Precision),
        f"a precision is written #pcp.precision<bf16, f32, f32>, not {attribute}",
    )
    compute, accumulate, wire = (
        str(unwrap(a))
        for a in (attribute.compute, attribute.accumulate, attribute.wire)
    )
    require(
        compute in COMPUTE,
        f"computes in {compute}; a device computes in {', '.join(COMPUTE)}",
    )
    require(
        (accumulate, wire) == ("f32", "f32"),
        f"accumulates in {accumulate} and sends {wire}; both are f32, which all "
        "devices have in common",
    )
