"""The table of sharding rules against the table of derivative rules.

pcp's own ops are collectives and the like, which come after the partition; those
before it (`pcp.constraint`, `pcp.stop_gradient`) have rules and lit tests.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from helpers.cases.named import sharding
from helpers.oracles.spmd import PLAN, whole

from pcp.autodiff.core import registry
from pcp.autodiff.core.kinds import Refusal
from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.layout import Layout, join, shard
from pcp.mesh import Mesh
from pcp.passes.core.walk import CONTROL_FLOW
from pcp.passes.sharding.rules import RULES

#: Ops without a rule, and why: they run whole on every member, or never come here.
REASONS: dict[str, frozenset[str]] = {
    "every member draws the same numbers": frozenset(
        f"stablehlo.{name}" for name in ("rng", "rng_bit_generator")
    ),
    "inlined first": frozenset(("func.call", "stablehlo.composite")),
    "pcp-import writes them with others": frozenset(
        f"stablehlo.{name}"
        for name in ("broadcast", "einsum", "unary_einsum", "torch_index_select")
    ),
    "chlo-legalize-to-stablehlo writes them with others": frozenset(
        ("chlo.constant", "chlo.constant_like", "chlo.mulhi", "chlo._asin_acos_kernel")
    ),
    "rare, and run whole": frozenset(
        (
            "chlo.ragged_dot chlo.scan stablehlo.custom_call stablehlo.tuple "
            "stablehlo.get_tuple_element stablehlo.uniform_dequantize "
            "stablehlo.uniform_quantize"
        ).split()
    ),
    "of sizes that are not known": frozenset(
        f"stablehlo.{name}"
        for name in (
            "get_dimension_size",
            "real_dynamic_slice",
            "set_dimension_size",
        )
    ),
    "made by the partition, not read by it": frozenset(
        f"stablehlo.{name}"
        for name in (
            "after_all all_gather all_reduce all_to_all collective_broadcast "
            "collective_permute collective_reduce create_token partition_id "
            "reduce_scatter replica_id async_done async_start"
        ).split()
    ),
    "they speak to the world outside": frozenset(
        ("stablehlo.infeed", "stablehlo.outfeed")
    ),
    "its region is a microbatch's program": frozenset(("pcp.microbatch",)),
}


def _has_reason(name: str) -> bool:
    listed = any(name in names for names in REASONS.values())
    grown = name.startswith(("chlo.broadcast_", "stablehlo.dynamic_"))
    return listed or grown or name.startswith("pcp.")


def test_what_has_a_derivative_has_a_sharding() -> None:
    known = {*RULES, *CONTROL_FLOW}
    asked = {n for n, rule in registry.rules().items() if not isinstance(rule, Refusal)}
    assert sorted(n for n in asked - known if not _has_reason(n)) == []


def test_no_reason_without_need() -> None:
    named = frozenset().union(*REASONS.values())
    assert sorted(named & {*RULES, *CONTROL_FLOW}) == []
    assert sorted(named - set(registry.rules())) == []


MESH = '"pcp.mesh"() {axes = [#pcp.axis<"x", 2>], devices = [], sym_name = "m"}'
NORM = (
    '%r = "stablehlo.batch_norm_inference"(%0, %1, %1, %1, %2) <{epsilon = 0.5 : f32, '
    "feature_index = 1 : i64}> : (tensor<6x4xf32>, tensor<4xf32>, tensor<4xf32>, "
    "tensor<4xf32>, tensor<4xf32>) -> tensor<6x4xf32>"
)
TRAINING = (
    '%r, %m, %v = "stablehlo.batch_norm_training"(%0, %1, %2) <{epsilon = 0.5 : f32, '
    "feature_index = 1 : i64}> : (tensor<6x4xf32>, tensor<4xf32>, tensor<4xf32>) "
    "-> (tensor<6x4xf32>, tensor<4xf32>, tensor<4xf32>)"
)
MAP = """%r = "stablehlo.map"(%0, %0) <{dimensions = array<i64: 0, 1>}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.multiply %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }) : (tensor<6x4xf32>, tensor<6x4xf32>) -> tensor<6x4xf32>"""
PROGRAMS = {"inference": NORM, "training": TRAINING, "map": MAP}
#: Layouts of the matrices, and of the vectors of features.
CUTS = {"features": ("- x", "x"), "rows": ("x -", "-")}


def _text(program: str, cut: str) -> str:
    outer, inner = CUTS[cut]
    return (
        f"{MESH} : () -> ()\nfunc.func @main(%0: tensor<6x4xf32> {sharding(outer)}, "
        f"%1: tensor<4xf32> {sharding(inner)}, %2: tensor<4xf32> {sharding(inner)}) "
        f"-> (tensor<6x4xf32> {sharding(outer)}) {{\n{PROGRAMS[program]}\n"
        "return %r : tensor<6x4xf32>\n}\n"
    )


def _run(text: str, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """The first result; the interpreter does not know these ops themselves."""
    module = parse(text)
    pipeline("builtin.module(pcp-legalize)").run(module)
    return whole(str(module), inputs)[0]


def _difference(program: str, cut: str) -> float:
    """Of the members' results, each run by itself, from the whole program's."""
    data = np.random.default_rng(0)
    inputs = [data.uniform(0.5, 2, s).astype(np.float32) for s in ((6, 4), (4,), (4,))]
    text = _text(program, cut)
    module = parse(text)
    pipeline(PLAN).run(module)
    mesh, layouts = Mesh("m", {"x": 2}), [Layout(((), ("x",))), Layout((("x",),))]
    if cut == "rows":
        layouts = [Layout((("x",), ())), Layout(((),))]
    outer, inner = layouts
    parts = [shard(x, outer if x.ndim == 2 else inner, mesh) for x in inputs]
    homes = [op for op in module.body.operations if "module" in op.operation.name]
    found = [
        _run(str(h), p) for h, p in zip(homes, zip(*parts, strict=True), strict=True)
    ]
    expected = _run(text, inputs)
    return float(np.abs(join(found, (6, 4), outer, mesh) - expected).max())


ALONE = [
    (program, cut)
    for program in PROGRAMS
    for cut in CUTS
    if (program, cut) != ("training", "rows")
]


@pytest.mark.parametrize(("program", "cut"), ALONE)
def test_on_parts(program: str, cut: str, elsewhere) -> None:
    assert elsewhere.submit(_difference, program, cut).result(60) < 1e-6


def test_batch_norm_takes_its_mean_of_all_rows() -> None:
    module = parse(_text("training", "rows"))
    pipeline(PLAN).run(module)
    assert str(module).count('"pcp.all_gather"') == 2
    assert 'batch_norm_training"(%' in str(module)
