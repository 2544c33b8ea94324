"""What users, or an earlier run, wrote on a function; what no tensor can have."""

from collections.abc import Iterator

from pcp.dialect.bindings import ir
from pcp.dialect.context import location_string
from pcp.errors import PassError, nearest
from pcp.mesh import Mesh
from pcp.passes.rewriting import refuse
from pcp.passes.sharding.flow import Graph, block_of, returned, walk
from pcp.passes.sharding.layout import SHARDING, Annotation, from_attribute
from pcp.passes.sharding.ports import op_shardings, port_shardings

#: The number of a value in the graph, its annotation, the op that says it, and of a
#: function at which port.
Written = tuple[int, ir.Attribute, ir.Operation, str]


def annotations(
    function: ir.Operation, graph: Graph, mesh: Mesh
) -> Iterator[tuple[int, Annotation]]:
    """Every annotated value's number, with what is said of it; checked."""
    for number, sharding, op, port in (
        *_ports(function, graph),
        *_ops(function, graph),
    ):
        annotation = Annotation.read(sharding)
        _check(annotation, graph.shapes[number], mesh, op, port)
        yield number, annotation


def check_shardings(function: ir.Operation, mesh: Mesh) -> None:
    """Raise at a sharding in the function that no tensor can have.

    For a pass that takes what propagation leaves, and may get what a user wrote.
    """
    block = block_of(function, 0)
    results = returned(block).operands
    for which, word, values in (
        ("arg_attrs", "argument", list(block.arguments)),
        ("res_attrs", "result", list(results)),
    ):
        given = port_shardings(function, which, len(values))
        for i, (value, sharding) in enumerate(zip(values, given, strict=True)):
            _check_value(value, sharding, mesh, function, f"{word} {i}: ")
    for op in walk(block):
        if op.name in ("pcp.constraint", "pcp.reshard"):
            _check_value(op.results[0], op.attributes["sharding"], mesh, op, "")
        if SHARDING in op.attributes:
            for value, sharding in zip(op.results, op_shardings(op), strict=True):
                _check_value(value, sharding, mesh, op, "")


def _check_value(
    value: ir.Value,
    sharding: ir.Attribute | None,
    mesh: Mesh,
    op: ir.Operation,
    port: str,
) -> None:
    if sharding is not None and isinstance(value.type, ir.RankedTensorType):
        shape = tuple(ir.RankedTensorType(value.type).shape)
        _check(Annotation.read(sharding), shape, mesh, op, port)


def _ports(function: ir.Operation, graph: Graph) -> Iterator[Written]:
    arguments = block_of(function, 0).arguments
    for which, word, numbers in (
        ("arg_attrs", "argument", [graph.index[a] for a in arguments]),
        ("res_attrs", "result", graph.results),
    ):
        given = port_shardings(function, which, len(numbers))
        for i, (number, sharding) in enumerate(zip(numbers, given, strict=True)):
            if sharding is not None:
                yield number, sharding, function, f"{word} {i}: "


def _ops(function: ir.Operation, graph: Graph) -> Iterator[Written]:
    for op in walk(block_of(function, 0)):
        given = op_shardings(op) if SHARDING in op.attributes else []
        if op.name in ("pcp.constraint", "pcp.reshard"):
            asked = op.attributes["sharding"]
            if given and not _extends(given[0], asked):
                refuse(
                    op,
                    f"it asks for {asked} and says of its result {given[0]}; keep one "
                    "of them",
                )
            yield graph.index[op.results[0]], asked, op, ""
            continue
        for result, sharding in zip(op.results, given, strict=False):
            if (number := graph.number(result)) is not None:
                yield number, sharding, op, ""


def _extends(found: ir.Attribute, asked: ir.Attribute) -> bool:
    """Whether a layout is what is asked for, or that and more in open dimensions."""
    wanted, layout = Annotation.read(asked), from_attribute(found)
    return len(layout.dims) == len(wanted.layout.dims) and all(
        own == said or (not closed and own[: len(said)] == said)
        for own, said, closed in zip(
            layout.dims, wanted.layout.dims, wanted.closed, strict=True
        )
    )


def _check(
    annotation: Annotation,
    shape: tuple[int, ...],
    mesh: Mesh,
    op: ir.Operation,
    port: str,
) -> None:
    """Raise at an annotation that no tensor can have."""
    layout = annotation.layout
    where = f"{location_string(op.location)}: {op.name}: {port}".removesuffix(": ")
    axes = [*layout.axes, *layout.unreduced, *annotation.replicated]
    if annotation.mesh != mesh.name:
        known = f"the program's mesh is @{mesh.name}"
        raise PassError(f"{where}: a sharding names @{annotation.mesh}; {known}")
    if len(layout.dims) != len(shape):
        raise PassError(
            f"{where}: the sharding {layout} has {len(layout.dims)} dims for a "
            f"tensor of rank {len(shape)}"
        )
    for axis in axes:
        if axis not in mesh.axes:
            known = ", ".join(mesh.axes)
            raise PassError(
                f'{where}: the sharding {layout} names axis "{axis}", which mesh '
                f"@{mesh.name} has not (axes: {known})." + nearest(axis, mesh.axes)
            )
        if axes.count(axis) > 1:
            raise PassError(f'{where}: the sharding {layout} uses "{axis}" twice')
    for d, (n, cut) in enumerate(zip(shape, layout.dims, strict=True)):
        if cut and mesh.count(cut) > n:
            raise PassError(
                f"{where}: dimension {d} of {n} cannot be cut into "
                f"{mesh.count(cut)} parts along {', '.join(cut)}; leave it "
                "whole or use a smaller axis"
            )
        if cut and not mesh.fills(n, cut):
            parts = mesh.parts(n, cut)
            raise PassError(
                f"{where}: dimension {d} of {n} is cut along {', '.join(cut)} into "
                f"{', '.join(map(str, parts))}, which leaves part {parts.index(0)} "
                "empty; leave its device out of the mesh, give it a larger share, or "
                "make the dimension larger"
            )
