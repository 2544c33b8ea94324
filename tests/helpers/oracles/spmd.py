"""A program with a mesh, run whole and partitioned."""

from collections.abc import Sequence

import numpy as np

from pcp.compiler import lockstep, segments
from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir, stablehlo
from pcp.dialect.context import parse
from pcp.layout import Layout, join, shard
from pcp.mesh import Mesh
from pcp.passes.core.rewriting import operations
from pcp.passes.core.stops import forget_derivatives
from pcp.passes.sharding.layout import from_attribute
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.ports import port_shardings


def add_mesh(module: ir.Module, axes: dict[str, int]) -> None:
    """A mesh `@m` of unnamed devices in front of everything."""
    named = ", ".join(f'#pcp.axis<"{a}", {n}>' for a, n in axes.items())
    text = f'"pcp.mesh"() {{axes = [{named}], devices = [], sym_name = "m"}} : () -> ()'
    ir.InsertionPoint.at_block_begin(module.body).insert(ir.Operation.parse(text))


def whole(text: str, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The program's results without any mesh."""
    module = parse(text)
    with module.context:
        for op in list(module.body.operations):
            if op.operation.name != "func.func":
                op.operation.erase()
        for op in operations(module):
            if op.name == "pcp.sharding_group":
                op.erase()
        forget_derivatives(module)
        chlo = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
        pipeline(chlo).run(module)
        types = ir.FunctionType(_main_type(module)).inputs
        given = [segments.dense(x, t) for x, t in zip(inputs, types, strict=True)]
        results = stablehlo.eval_module(module, given)
        return [np.array(r).reshape(ir.ShapedType(r.type).shape) for r in results]


def _main_type(module: ir.Module) -> ir.Type:
    main = module.body.operations[0].operation
    return ir.TypeAttr(main.attributes["function_type"]).value


PLAN = (
    "builtin.module(pcp-propagate-sharding,pcp-insert-reshards,pcp-partition,"
    "pcp-verify-plan)"
)


def partitioned(
    text: str, inputs: Sequence[np.ndarray], passes: str = PLAN
) -> list[np.ndarray]:
    """The program's results on its mesh, joined."""
    module = parse(text)
    pipeline(passes).run(module)
    return run_joined(module, inputs)


def run_joined(module: ir.Module, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Cut the inputs, run all members in lockstep, join the results."""
    with module.context:
        (mesh,) = read_meshes(module).values()
        home = next(
            op.operation
            for op in module.body.operations
            if op.operation.name == "builtin.module"
        )
        main = home.regions[0].blocks[0].operations[0].operation
        count = len(
            ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).results
        )
        ins = port_shardings(main, "arg_attrs", len(inputs))
        outs = port_shardings(main, "res_attrs", count)
        parts = [
            shard(x, from_attribute(s), mesh) for x, s in zip(inputs, ins, strict=True)
        ]
        results = lockstep.run(module, "main", list(zip(*parts, strict=True)))
        joined = []
        for i, sharding in enumerate(outs):
            layout = from_attribute(sharding)
            pieces = [r[i] for r in results]
            shape = global_shape(pieces, layout, mesh)
            joined.append(join(pieces, shape, layout, mesh))
        return joined


def global_shape(
    pieces: Sequence[np.ndarray], layout: Layout, mesh: Mesh
) -> tuple[int, ...]:
    """The whole tensor's shape, from the parts of the members along each dimension."""
    shape = []
    for d, axes in enumerate(layout.dims):
        seen = {
            tuple(place[a] for a in axes): piece.shape[d]
            for place, piece in zip(mesh.members, pieces, strict=True)
        }
        shape.append(sum(seen.values()))
    return tuple(shape)
