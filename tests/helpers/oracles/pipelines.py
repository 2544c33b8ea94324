"""Gradient programs of real models in stages, run by the lockstep executor."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from helpers.models import sharded
from helpers.oracles.spmd import add_mesh, whole

from pcp.compiler import lockstep
from pcp.compiler.catalog import pipeline
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.layout import Layout, join
from pcp.passes.core.functions import (
    NAME,
    ROLE,
    argument_attributes,
    result_attributes,
    set_argument_attributes,
    set_result_attributes,
    string,
    symbol_name,
)
from pcp.passes.core.rewriting import functions
from pcp.passes.sharding.layout import SHARDING, from_attribute, to_attribute
from pcp.passes.sharding.mesh import read_meshes
from pcp.passes.sharding.ports import set_port_shardings


def named(model: str) -> ir.Module:
    """The gradient program with a name and a role for each tensor."""
    found = sharded.models()[model]
    module = parse(sharded.gradient_text(model))
    count = len(found.names) - len(found.data)
    roles = ["param"] * count + ["data"] * len(found.data)
    with module.context:
        (main,) = functions(module)
        set_argument_attributes(main, _ports(found.names, roles))
        results = ["loss", *found.names[:count]]
        set_result_attributes(main, _ports(results, ["loss"] + ["grad"] * count))
    return module


def chain_text(stages: int, batch: int, *, marked: bool = True) -> str:
    """`@main`: the sum of tanh(... tanh(x w0) ... wn), a layer for each stage."""
    lines, h = [], "%x"
    dims = "contracting_dims = [1] x [0]"
    for i in range(stages):
        mark = f"{{pcp.stage = {i}}} " if marked else ""
        types = f"(tensor<{batch}x4xf32>, tensor<4x4xf32>) -> tensor<{batch}x4xf32>"
        lines += [
            f"%p{i} = stablehlo.dot_general {h}, %w{i}, {dims} {mark}: {types}",
            f"%h{i} = stablehlo.tanh %p{i} : tensor<{batch}x4xf32>",
        ]
        h = f"%h{i}"
    data = 'pcp.name = "x", pcp.role = "data"'
    weights = ", ".join(
        f'%w{i}: tensor<4x4xf32> {{pcp.name = "w{i}", pcp.role = "param"}}'
        for i in range(stages)
    )
    return f"""
func.func @main(%x: tensor<{batch}x4xf32> {{{data}}}, {weights}) -> tensor<f32> {{
  {chr(10).join(lines)}
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %l = stablehlo.reduce({h} init: %z) applies stablehlo.add across dimensions = [0, 1]
    : (tensor<{batch}x4xf32>, tensor<f32>) -> tensor<f32>
  return %l : tensor<f32>
}}"""


def chain(stages: int, batch: int, *, marked: bool = True) -> ir.Module:
    """`chain_text` and its `@grad`."""
    module = parse(chain_text(stages, batch, marked=marked))
    passes = "pcp-grad{func=main name=grad},pcp-simplify,cse,canonicalize"
    pipeline(f"builtin.module({passes})").run(module)
    return module


def scheduled_chain(stages: int, count: int, kind: str) -> ir.Module:
    """`chain` in stages and microbatches, ordered."""
    module = chain(stages, count)
    passes = f"pcp-stage{{func=grad stages={stages} microbatches={count}}}"
    order = f"pcp-schedule{{func=grad kind={kind}}}"
    pipeline(f"builtin.module({passes},{order})").run(module)
    return module


def _ports(names: Sequence[str], roles: Sequence[str]) -> list[dict]:
    return [
        {NAME: ir.StringAttr.get(name), ROLE: ir.StringAttr.get(role)}
        for name, role in zip(names, roles, strict=True)
    ]


def staged(model: str, options: str, kind: str) -> ir.Module:
    """The model's `pcp.schedule`, ordered."""
    module = named(model)
    passes = f"pcp-stage{{{options}}},pcp-schedule{{kind={kind}}}"
    pipeline(f"builtin.module({passes})").run(module)
    return module


def mixed(model: str, axes: dict[str, int], plan: sharded.Plan) -> ir.Module:
    """`named`, on a mesh, with the plan's shardings on its border."""
    module = named(model)
    found = sharded.models()[model]
    layouts = [
        sharded.layout(plan, n, np.shape(a))
        for n, a in zip(found.names, found.arguments, strict=True)
    ]
    count = len(found.names) - len(found.data)
    with module.context:
        (main,) = functions(module)
        for which, own in (
            ("arg_attrs", layouts),
            ("res_attrs", [Layout(()), *layouts[:count]]),
        ):
            set_port_shardings(main, which, [to_attribute(x, "m") for x in own])
        add_mesh(module, axes)
    return module


def run_mixed(
    module: ir.Module, entry: str, inputs: dict[tuple[str, str], np.ndarray]
) -> dict[tuple[str, str], np.ndarray]:
    """Every device's results of a function joined, by role and name.

    `module` holds each device's program. Two devices that hold the same part have to
    agree in every bit.
    """
    with module.context:
        (mesh,) = read_meshes(module).values()
        mains = []
        for device in mesh.devices:
            found = next(op for op in module.body if symbol_name(op) == device)
            body = found.operation.regions[0].blocks[0].operations
            mains.append(next(f.operation for f in body if symbol_name(f) == entry))
        given = []
        for main, place in zip(mains, mesh.members, strict=True):
            parts = []
            for said in argument_attributes(main):
                whole_ = inputs[_key(said)]
                layout = _layout(said, whole_.ndim)
                parts.append(whole_[layout.slices(whole_.shape, mesh, place)])
            given.append(parts)
        results = lockstep.run(module, entry, given)
        return _joined(mains, results, mesh)


def _joined(mains, results, mesh) -> dict[tuple[str, str], np.ndarray]:
    held: dict[tuple[str, str], tuple[Layout, list]] = {}
    for member, (main, values) in enumerate(zip(mains, results, strict=True)):
        for said, value in zip(result_attributes(main), values, strict=True):
            new = _layout(said, value.ndim), [None] * mesh.size
            held.setdefault(_key(said), new)[1][member] = value
    joined = {}
    for key, (layout, parts) in held.items():
        whole_ = _whole_shape(layout, parts, mesh)
        joined[key] = join(parts, whole_, layout, mesh)
    return joined


def _whole_shape(layout: Layout, parts: list, mesh) -> tuple[int, ...]:
    """The shape that these parts have together: each dimension's parts added up."""
    shape = []
    for d, axes in enumerate(layout.dims):
        sizes = {
            tuple(place[a] for a in axes): part.shape[d]
            for place, part in zip(mesh.members, parts, strict=True)
            if part is not None
        }
        shape.append(sum(sizes.values()))
    return tuple(shape)


def _key(said: dict[str, ir.Attribute]) -> tuple[str, str]:
    return string(said, ROLE) or "", string(said, NAME) or ""


def _layout(said: dict[str, ir.Attribute], rank: int) -> Layout:
    if SHARDING not in said:
        return Layout.replicated(rank)
    return from_attribute(said[SHARDING])


def mixed_error(
    model: str,
    axes: dict[str, int],
    plan: str,
    options: str,
    kind: str,
    first: str = "",
) -> float:
    """`error` on a mesh of more than stages, with a plan of `spmd_models`.

    `first` are passes in front of pcp-stage, each with a comma behind it.
    """
    found = sharded.models()[model]
    expected = whole(sharded.gradient_text(model), found.arguments)
    module = mixed(model, axes, getattr(sharded, plan))
    passes = f"pcp-stage{{{options}}},pcp-schedule{{kind={kind}}}"
    lower = "pcp-lower-schedule,pcp-verify-plan"
    pipeline(f"builtin.module({first}{passes},{lower})").run(module)
    count = len(found.names) - len(found.data)
    roles = ["param"] * count + ["data"] * len(found.data)
    keys = zip(roles, found.names, strict=True)
    inputs = dict(zip(keys, found.arguments, strict=True))
    results = run_mixed(module, "main", inputs)
    names = [("loss", "loss"), *(("grad", n) for n in found.names[:count])]
    assert sorted(results) == sorted(names)
    return largest_error(results, names, expected)


def largest_error(
    results: Mapping[Any, np.ndarray],
    names: Sequence[Any],
    expected: Sequence[np.ndarray],
) -> float:
    """The largest relative error of results, of those that have these names."""
    return max(
        float(np.abs(results[name] - b).max() / (1e-3 + np.abs(b).max()))
        for name, b in zip(names, expected, strict=True)
    )


def run_by_name(
    module: ir.Module, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Every device's results of `@main`, by name."""
    pipeline("builtin.module(pcp-lower-schedule,pcp-verify-plan)").run(module)
    with module.context:
        (mesh,) = read_meshes(module).values()
        homes = {
            symbol_name(op): op.operation.regions[0].blocks[0].operations[0].operation
            for op in module.body.operations
            if op.operation.name == "builtin.module"
        }
        mains = [homes[device] for device in mesh.devices]
        given = [
            [inputs[string(a, NAME) or ""] for a in argument_attributes(main)]
            for main in mains
        ]
        found = lockstep.run(module, "main", given)
        return {
            string(said, NAME) or "": value
            for main, values in zip(mains, found, strict=True)
            for said, value in zip(result_attributes(main), values, strict=True)
        }


def error(model: str, options: str, kind: str) -> float:
    """The largest relative error of the loss and the gradients against the whole."""
    found = sharded.models()[model]
    expected = whole(sharded.gradient_text(model), found.arguments)
    inputs = dict(zip(found.names, found.arguments, strict=True))
    results = run_by_name(staged(model, options, kind), inputs)
    names = ["loss", *found.names][: len(expected)]
    assert sorted(results) == sorted(names)
    return largest_error(results, names, expected)
