"""examples/megatron.json: attention is cut by heads, two sums are left of each half."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from helpers.models.torch_examples import Example, source
from helpers.repository.sources import ROOT
from helpers.sampled import sampled

from pcp.compiler import driver, lockstep
from pcp.compiler.driver import Program
from pcp.compiler.options import CompileOptions
from pcp.dialect.bindings import ir
from pcp.frontends.torch import from_torch
from pcp.layout import join, shard
from pcp.passes.core.rewriting import operations
from pcp.passes.sharding.mesh import read_meshes

LAYERS = 1


def _lowered(width: int) -> tuple[Program, Example]:
    """A Llama's gradient over dp=2, tp=2."""
    torch.manual_seed(0)
    sizes = {"block_size": 8, "vocabulary": 2 * width, "width": width}
    model = source("llama_block").Llama(heads=4, groups=2, layers=LAYERS, **sizes)
    ids, targets = torch.randint(2 * width, (2, 4, 8))
    file = str(ROOT / "examples/megatron.json")
    options = CompileOptions(mode="grad", mesh="dp=2,tp=2", sharding=file)
    program = driver.lower(from_torch(model, ids, targets), options)
    return program, Example(model, (ids, targets))


def _fused(width: int, by_head: bool = True) -> tuple[Program, Example]:
    """The same of a GPT whose queries, keys and values are one weight, by head."""
    torch.manual_seed(0)
    sizes = {"block_size": 8, "vocabulary": 2 * width, "width": width}
    made = source("nanogpt_small").GPT(heads=4, layers=LAYERS, by_head=by_head, **sizes)
    ids, targets = torch.randint(2 * width, (2, 4, 8))
    file = str(ROOT / "examples/megatron.json")
    options = CompileOptions(mode="grad", mesh="dp=2,tp=2", sharding=file)
    program = driver.lower(from_torch(made, ids, targets), options)
    return program, Example(made, (ids, targets))


def _over_tp(program: Program, function: str) -> Counter[tuple[str, int]]:
    """(collective, rank of its operand) of member 0, how often."""
    with program.module.context:
        member = next(
            v.operation
            for v in program.module.body.operations
            if v.operation.name == "builtin.module"
        )
        (body,) = (
            op
            for op in operations(member)
            if op.name == "func.func"
            and ir.StringAttr(op.attributes["sym_name"]).value == function
        )
        return Counter(
            (op.name, ir.RankedTensorType(op.operands[0].type).rank)
            for op in operations(body)
            if "axes" in op.attributes and "tp" in str(op.attributes["axes"])
        )


@pytest.mark.slow  # test_a_fused_weight_is_cut_by_heads counts too
def test_two_sums_a_layer_and_direction() -> None:
    """And one of the embedding forward, one of the head backward; no gather."""
    program, _ = _lowered(512)
    forward, gradient = (_over_tp(program, name) for name in ("main", "grad"))
    assert {name for name, _ in gradient} == {"pcp.all_reduce"}
    assert forward["pcp.all_reduce", 3] == 2 * LAYERS + 1
    assert gradient["pcp.all_reduce", 3] == 2 * (2 * LAYERS + 1)


def test_the_plan_cuts_attention_by_heads() -> None:
    """Queries, keys and values by rows, what joins the heads by columns."""
    program, _ = _lowered(16)
    parts = {t.name: str(t.layout) for t in program.manifest.function("grad").inputs}
    rows, columns = "[tp, .]", "[., tp]"
    wanted = {"query": rows, "key": rows, "value": rows, "out": columns}
    found = {
        name: layout
        for name, layout in parts.items()
        if any(name.endswith(f".{end}.weight") for end in wanted)
    }
    assert len(found) == 4 * LAYERS
    for name, layout in found.items():
        assert layout == wanted[name.split(".")[-2]], name


def test_a_fused_weight_is_cut_by_heads() -> None:
    """Rows of qkv, which stand by head, and columns of what joins the heads."""
    program, _ = _fused(512)
    parts = {t.name: str(t.layout) for t in program.manifest.function("grad").inputs}
    assert parts["blocks.0.attention.qkv.weight"] == "[tp, .]"
    assert parts["blocks.0.attention.projection.weight"] == "[., tp]"
    forward, gradient = (_over_tp(program, name) for name in ("main", "grad"))
    assert {name for name, _ in (*forward, *gradient)} == {"pcp.all_reduce"}
    wide = {
        name: sum(n for (_, rank), n in found.items() if rank == 3)
        for name, found in (("main", forward), ("grad", gradient))
    }
    assert wide == {"main": 2 * LAYERS, "grad": 4 * LAYERS + 1}


@sampled("lowered", [_lowered, _fused, lambda width: _fused(width, by_head=False)], 1)
def test_the_gradients_are_those_of_torch(lowered: Any) -> None:
    program, example = lowered(16)
    signature = program.manifest.function("grad")
    with program.module.context:
        (mesh,) = read_meshes(program.module).values()
        parts = [
            shard(x, spec.layout, mesh)
            for x, spec in zip(example.arguments(), signature.inputs, strict=True)
        ]
        members = lockstep.run(program.module, "grad", list(zip(*parts, strict=True)))
    expected = [np.float32(example.loss()), *example.gradients()]
    for i, (spec, want) in enumerate(zip(signature.results, expected, strict=True)):
        found = join([m[i] for m in members], spec.shape, spec.layout, mesh)
        scale = 1e-3 + np.abs(want).max()
        np.testing.assert_allclose(found / scale, want / scale, atol=1e-5)
