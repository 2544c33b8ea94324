"""Layouts as the IR writes them, `#pcp.sharding<@mesh, [dims], [], [unreduced]>`."""

from dataclasses import dataclass

from pcp.dialect.attributes import SHARDING, Dim, Sharding, sharding_dims
from pcp.dialect.base import as_strings
from pcp.dialect.bindings import ir
from pcp.layout import Axes, Layout

__all__ = [
    "SHARDING",
    "WHY",
    "Annotation",
    "Axes",
    "Layout",
    "from_attribute",
    "to_attribute",
]

#: On ops: from where every axis of the results came, one entry an axis.
WHY = "pcp.why"


def to_attribute(layout: Layout, mesh: str) -> ir.Attribute:
    """`#pcp.sharding<@mesh, [dims], [], [unreduced]>`."""

    def array(axes: Axes) -> ir.ArrayAttr:
        return ir.ArrayAttr.get([ir.StringAttr.get(axis) for axis in axes])

    return Sharding.get(
        ir.FlatSymbolRefAttr.get(mesh),
        ir.ArrayAttr.get([array(axes) for axes in layout.dims]),
        ir.ArrayAttr.get([]),
        array(layout.unreduced),
    )


def from_attribute(attribute: ir.Attribute) -> Layout:
    """The layout that a `#pcp.sharding` says; a plain Layout keeps no priorities."""
    sharding = Sharding(attribute)
    dims = tuple(tuple(axes) for axes in sharding_dims(sharding))
    return Layout(dims, tuple(as_strings(sharding.unreduced, "unreduced")))


@dataclass(frozen=True)
class Annotation:
    """What a user's `#pcp.sharding` says beyond the axes."""

    layout: Layout
    mesh: str
    closed: tuple[bool, ...]
    priority: tuple[int, ...]
    replicated: Axes

    @classmethod
    def read(cls, attribute: ir.Attribute) -> "Annotation":
        """A plain list of axes is a closed dimension of priority 0."""
        sharding = Sharding(attribute)
        dims = list(ir.ArrayAttr(sharding.dims))
        facts = [
            (ir.IntegerAttr(d.closed).value == 1, ir.IntegerAttr(d.priority).value)
            if isinstance(d, Dim)
            else (True, 0)
            for d in dims
        ]
        return cls(
            from_attribute(attribute),
            ir.FlatSymbolRefAttr(sharding.mesh).value,
            tuple(closed for closed, _ in facts),
            tuple(priority for _, priority in facts),
            tuple(as_strings(sharding.replicated, "replicated")),
        )
