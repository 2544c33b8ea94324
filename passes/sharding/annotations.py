"""What users, or an earlier run, wrote on a function; what no tensor can have."""

from collections.abc import Iterator

from pcp.dialect.bindings import ir
from pcp.dialect.diagnostics import location_string
from pcp.errors import PassError, nearest
from pcp.mesh import Mesh
from pcp.passes.core.rewriting import refuse
from pcp.passes.core.walk import block_of, returned, walk
from pcp.passes.sharding.flow import FlowGraph
from pcp.passes.sharding.layout import SHARDING, Annotation, from_attribute
from pcp.passes.sharding.ports import check_written, op_shardings, port_shardings

#: The number of a value in the graph, its annotation, the op that says it, and of a
#: function at which port.
Written = tuple[int, ir.Attribute, ir.Operation, str]


def annotations(
    function: ir.Operation, graph: FlowGraph, mesh: Mesh
) -> Iterator[tuple[int, Annotation]]:
    """Every annotated value's number, with what is said of it; checked."""
    for number, sharding, op, port in (
        *_ports(function, graph),
        *_ops(function, graph),
    ):
        _check_op(op, sharding, port)
        annotation = Annotation.read(sharding)
        _check(annotation, graph.shapes[number], mesh, op, port)
        yield number, annotation


def check_shardings(function: ir.Operation, mesh: Mesh) -> None:
    """Raise at a sharding in the function that no tensor can have.

    For a pass that takes what propagation leaves, and may get what a user wrote.
    """
    good: set[tuple[ir.Attribute, ir.Type]] = set()
    for value, sharding, op, port in _written(function):
        pair = sharding, value.type
        if pair in good or not isinstance(value.type, ir.RankedTensorType):
            continue
        shape = tuple(ir.RankedTensorType(value.type).shape)
        _check_op(op, sharding, port)
        _check(Annotation.read(sharding), shape, mesh, op, port)
        good.add(pair)


def _written(
    function: ir.Operation,
) -> Iterator[tuple[ir.Value, ir.Attribute, ir.Operation, str]]:
    """Every value of which something is said, who says it, and at which port."""
    block = block_of(function, 0)
    for which, word, values in (
        ("arg_attrs", "argument", list(block.arguments)),
        ("res_attrs", "result", list(returned(block).operands)),
    ):
        given = port_shardings(function, which, len(values))
        for i, (value, sharding) in enumerate(zip(values, given, strict=True)):
            if sharding is not None:
                yield value, sharding, function, f"{word} {i}: "
    for op in walk(block):
        if op.name in ("pcp.constraint", "pcp.reshard"):
            yield op.results[0], op.attributes["sharding"], op, ""
        if SHARDING in op.attributes:
            for value, sharding in zip(op.results, op_shardings(op), strict=True):
                yield value, sharding, op, ""


def _check_op(op: ir.Operation, sharding: ir.Attribute, port: str) -> None:
    """What is written on ops; ports are checked where they are read."""
    if not port:
        check_written(op, SHARDING, sharding)


def _ports(function: ir.Operation, graph: FlowGraph) -> Iterator[Written]:
    arguments = block_of(function, 0).arguments
    for which, word, numbers in (
        ("arg_attrs", "argument", [graph.index.get(a) for a in arguments]),
        ("res_attrs", "result", graph.results),
    ):
        given = port_shardings(function, which, len(numbers))
        for i, (number, sharding) in enumerate(zip(numbers, given, strict=True)):
            if sharding is not None and number is not None:
                yield number, sharding, function, f"{word} {i}: "


def _ops(function: ir.Operation, graph: FlowGraph) -> Iterator[Written]:
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
    if (problem := _problem(annotation, shape, mesh)) is not None:
        where = f"{location_string(op.location)}: {op.name}: {port}".removesuffix(": ")
        raise PassError(f"{where}: {problem}")


def _problem(annotation: Annotation, shape: tuple[int, ...], mesh: Mesh) -> str | None:
    """What is wrong with an annotation of a tensor."""
    layout = annotation.layout
    if annotation.mesh != mesh.name:
        return (
            f"a sharding names @{annotation.mesh}; the program's mesh is @{mesh.name}"
        )
    if len(layout.dims) != len(shape):
        return (
            f"the sharding {layout} has {len(layout.dims)} dims for a tensor of rank "
            f"{len(shape)}"
        )
    axes = [*layout.axes, *layout.unreduced, *annotation.replicated]
    for axis in axes:
        if axis not in mesh.axes:
            return (
                f'the sharding {layout} names axis "{axis}", which mesh @{mesh.name} '
                f"has not (axes: {', '.join(mesh.axes)})." + nearest(axis, mesh.axes)
            )
        if axes.count(axis) > 1:
            return f'the sharding {layout} uses "{axis}" twice'
    for d, (n, cut) in enumerate(zip(shape, layout.dims, strict=True)):
        if cut and mesh.count(cut) > n:
            return (
                f"dimension {d} of {n} cannot be cut into {mesh.count(cut)} parts "
                f"along {', '.join(cut)}; leave it whole or use a smaller axis"
            )
        if cut and not mesh.fills(n, cut):
            parts = mesh.parts(n, cut)
            return (
                f"dimension {d} of {n} is cut along {', '.join(cut)} into "
                f"{', '.join(map(str, parts))}, which leaves part {parts.index(0)} "
                "empty; leave its device out of the mesh, give it a larger share, or "
                "make the dimension larger"
            )
    return None
