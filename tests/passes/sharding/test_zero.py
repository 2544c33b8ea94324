"""pcp-zero: stages 1, 2 and 3 train as the whole program does."""

import numpy as np
import pytest
from helpers.models import sharded
from helpers.oracles.spmd import global_shape, whole

from pcp.compiler import driver, lockstep
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.layout import Layout, join, shard
from pcp.mesh import Mesh
from pcp.passes.core.rewriting import operations, replace
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.zero import cut

MESH = Mesh("m", {"dp": 4})


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((8,), (("dp",),)),
        ((3, 8), ((), ("dp",))),  # the first that dp divides
        ((5, 3), (("dp",), ())),  # or that has room
        ((3, 2), ((), ())),  # or none
        ((), ()),
    ],
)
def test_which_dimension_is_cut(shape, dims) -> None:
    assert cut(Layout.replicated(len(shape)), shape, "dp", MESH).dims == dims


def _inputs(function, known) -> list[np.ndarray]:
    """By name for what the model has; small positive numbers for the rest."""
    random = np.random.default_rng(5)
    inputs = []
    for spec in function.inputs:
        if spec.role in ("param", "data") and spec.name in known:
            inputs.append(known[spec.name])
        elif spec.dtype == "f32":
            drawn = random.uniform(0.1, 1.0, spec.shape)
            inputs.append(drawn.astype(np.float32))
        else:
            inputs.append(np.full(spec.shape, 3, np.int32))
    return inputs


def _error(name: str, stage: int, function: str) -> tuple[float, list[str]]:
    """(largest relative error against the whole program, collectives of member 0)."""
    model = sharded.models()[name]
    known = dict(zip(model.names, model.arguments, strict=True))
    options = CompileOptions(mode="train", mesh="dp=4", sharding="auto", zero=stage)
    module = parse(sharded.training_text(name))
    program = driver.lower(module, options)
    signature = program.manifest.function(function)
    inputs = _inputs(signature, known)
    with program.module.context:
        (mesh,) = read_meshes(program.module).values()
        parts = [
            shard(x, spec.layout, mesh)
            for x, spec in zip(inputs, signature.inputs, strict=True)
        ]
        results = lockstep.run(program.module, function, list(zip(*parts, strict=True)))
    found = []
    for i, spec in enumerate(signature.results):
        own = [member[i] for member in results]
        assert global_shape(own, spec.layout, mesh) == spec.shape
        found.append(join(own, spec.shape, spec.layout, mesh))
    expected = whole(_function_alone(program.whole, function), inputs)
    error = max(
        float(np.abs(a - b).max(initial=0) / (1e-3 + np.abs(b).max(initial=0)))
        for a, b in zip(found, expected, strict=True)
    )
    body = _body_of_first_member(program.module, function)
    kinds = ("all_reduce", "reduce_scatter", "all_gather")
    return error, [kind for kind in kinds if f'"pcp.{kind}"' in body]


def _body_of_first_member(module: ir.Module, function: str) -> str:
    """The text of its function."""
    for view in module.body.operations:
        if view.operation.name == "builtin.module":
            for inner in view.operation.regions[0].blocks[0].operations:
                if ir.StringAttr(inner.attributes["sym_name"]).value == function:
                    return str(inner)
    raise LookupError(function)


def _function_alone(module: ir.Module, name: str) -> str:
    """One function of a module as `@main`."""
    alone = parse(str(module))
    with alone.context:
        for view in list(alone.body.operations):
            op = view.operation
            if op.name != "func.func":
                op.erase()
            elif ir.StringAttr(op.attributes["sym_name"]).value != name:
                op.erase()
            else:
                op.attributes["sym_name"] = ir.StringAttr.get("main")
        for op in operations(alone):
            if op.name in ("pcp.constraint", "pcp.barrier_prop"):
                replace(op, list(op.operands))  # they say where, not what
    return str(alone)


@pytest.mark.parametrize(
    ("name", "stage", "function", "collectives"),
    [
        ("mlp", 1, "apply", ["all_gather"]),
        pytest.param("mlp", 2, "grad", ["reduce_scatter"], marks=pytest.mark.slow),
        ("mlp", 3, "grad", ["reduce_scatter", "all_gather"]),
        ("mlp", 3, "apply", []),
        pytest.param("gpt", 1, "apply", ["all_gather"], marks=pytest.mark.slow),
        pytest.param("gpt", 2, "grad", ["reduce_scatter"], marks=pytest.mark.slow),
        pytest.param("gpt", 3, "grad", ["reduce_scatter"], marks=pytest.mark.slow),
        pytest.param("gpt", 3, "apply", [], marks=pytest.mark.slow),
    ],
)
def test_a_stage_trains_as_the_whole(
    name, stage, function, collectives, elsewhere
) -> None:
    error, kinds = elsewhere.submit(_error, name, stage, function).result(200)
    assert error < 1e-5
    if function == "apply":
        assert kinds == collectives
    else:  # small activations may be cheaper to gather than weights to reduce
        assert set(collectives) <= set(kinds)
