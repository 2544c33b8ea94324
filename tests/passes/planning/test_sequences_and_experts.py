"""Plans that cut a sequence along "sp" and experts along "ep"."""

import numpy as np
import pytest
from helpers.models.clusters import FAST, devices
from helpers.oracles.spmd import run_joined, whole

from pcp.compiler import pipelines
from pcp.compiler.catalog import pipeline
from pcp.compiler.sharding_file import annotate
from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.errors import PassError
from pcp.mesh import Mesh
from pcp.passes.core.functions import (
    NAME,
    argument_attributes,
    find,
    string,
    symbol_name,
)
from pcp.passes.core.rewriting import functions
from pcp.passes.planning import tensor_groups
from pcp.passes.planning.plan import Search, write
from pcp.passes.sharding.layout import SHARDING

TOKENS, WIDTH, EXPERTS = 64, 8, 4

X = f"tensor<1x{TOKENS}x{WIDTH}xf32>"
W = f"tensor<{WIDTH}x{WIDTH}xf32>"
SCORES, ROWS = f"tensor<1x{TOKENS}x{TOKENS}xf32>", f"tensor<1x{TOKENS}xf32>"
_SUM = "applies stablehlo.add across dimensions ="

#: One head, which no other axis divides, and one sample.
ATTENTION = f"""
func.func @main(%w: {W} {{pcp.name = "w", pcp.role = "param"}},
                %x: {X} {{pcp.name = "x", pcp.role = "data"}}) -> tensor<f32> {{
  %q = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0] : ({X}, {W}) -> {X}
  %s = stablehlo.dot_general %q, %x, batching_dims = [0] x [0],
    contracting_dims = [2] x [2] : ({X}, {X}) -> {SCORES}
  %none = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %m = stablehlo.reduce(%s init: %none) applies stablehlo.maximum
    across dimensions = [2] : ({SCORES}, tensor<f32>) -> {ROWS}
  %mb = stablehlo.broadcast_in_dim %m, dims = [0, 1] : ({ROWS}) -> {SCORES}
  %d = stablehlo.subtract %s, %mb : {SCORES}
  %e = stablehlo.exponential %d : {SCORES}
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %l = stablehlo.reduce(%e init: %zero) {_SUM} [2] : ({SCORES}, tensor<f32>) -> {ROWS}
  %y = stablehlo.dot_general %e, %x, batching_dims = [0] x [0],
    contracting_dims = [2] x [1] : ({SCORES}, {X}) -> {X}
  %lb = stablehlo.broadcast_in_dim %l, dims = [0, 1] : ({ROWS}) -> {X}
  %o = stablehlo.divide %y, %lb : {X}
  %p = stablehlo.multiply %o, %o : {X}
  %r = stablehlo.reduce(%p init: %zero) {_SUM} [0, 1, 2] : ({X}, tensor<f32>)
    -> tensor<f32>
  return %r : tensor<f32>
}}"""

_T = f"tensor<{WIDTH}x4xf32>"
_UP, _DOWN = (f"tensor<{EXPERTS}x{n}xf32>" for n in ("4x6", "6x4"))
_GATE, _SHARES = f"tensor<4x{EXPERTS}xf32>", f"tensor<{WIDTH}x{EXPERTS}xf32>"
_INSIDE = f"tensor<{WIDTH}x{EXPERTS}x6xf32>"
_EACH = f"tensor<{EXPERTS}x{WIDTH}x4xf32>"

#: Each of the experts looks at each row; a gate weighs what they say.
MIXTURE = f"""
func.func @main(%up: {_UP} {{pcp.name = "up", pcp.role = "param"}},
                %down: {_DOWN} {{pcp.name = "down", pcp.role = "param"}},
                %gate: {_GATE} {{pcp.name = "gate", pcp.role = "param"}},
                %x: {_T} {{pcp.name = "x", pcp.role = "data"}}) -> tensor<f32> {{
  %a = stablehlo.dot_general %x, %up, contracting_dims = [1] x [1]
    : ({_T}, {_UP}) -> {_INSIDE}
  %h = stablehlo.tanh %a : {_INSIDE}
  %y = stablehlo.dot_general %h, %down, batching_dims = [1] x [0],
    contracting_dims = [2] x [1] : ({_INSIDE}, {_DOWN}) -> {_EACH}
  %g = stablehlo.dot_general %x, %gate, contracting_dims = [1] x [0]
    : ({_T}, {_GATE}) -> {_SHARES}
  %gs = stablehlo.logistic %g : {_SHARES}
  %gb = stablehlo.broadcast_in_dim %gs, dims = [1, 0] : ({_SHARES}) -> {_EACH}
  %z = stablehlo.multiply %y, %gb : {_EACH}
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %o = stablehlo.reduce(%z init: %zero) {_SUM} [0] : ({_EACH}, tensor<f32>) -> {_T}
  %p = stablehlo.multiply %o, %o : {_T}
  %r = stablehlo.reduce(%p init: %zero) {_SUM} [0, 1] : ({_T}, tensor<f32>)
    -> tensor<f32>
  return %r : tensor<f32>
}}"""


def _gradient(text: str, cluster: str = "") -> ir.Module:
    """The program of the gradient, in a module with a cluster."""
    module = parse(text)
    pipelines.prepare(infer_roles=True).run(module)
    pipelines.front("grad", spread=True).run(module)
    described = parse(cluster, module.context)
    with ir.InsertionPoint.at_block_begin(module.body):
        for view in described.body.operations:
            view.operation.clone()
    return module


def _only_gradient(module: ir.Module) -> str:
    """Leave @grad, as @main."""
    for function in list(functions(module)):
        if symbol_name(function) == "grad":
            function.attributes["sym_name"] = ir.StringAttr.get("main", module.context)
        else:
            function.erase()
    return str(module)


def _agrees(
    text: str, axes: dict[str, int], *arguments: np.ndarray
) -> dict[str, list[list[str]]]:
    """The plan on these axes gives the whole program's gradient; what it cuts."""
    module = _gradient(text, devices(*[FAST] * 4))
    with module.context:
        choice = Search.of(module, axes=axes).run(keep=1)
        write(module, choice)
        _only_gradient(module)
    pipeline("builtin.module(pcp-propagate-sharding,pcp-insert-reshards,"
             "pcp-partition,pcp-verify-plan)").run(module)  # fmt: skip
    found = run_joined(module, arguments)
    wanted = whole(_only_gradient(_gradient(text)), arguments)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())
    return choice.sharding(choice.best.candidate)


def _normal(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("members", "room"),
    [(2, 48_000), pytest.param(4, 32_000, marks=pytest.mark.slow)],
)
def test_a_sequence_is_cut_where_nothing_else_fits(members: int, room: int) -> None:
    small = f"memory = {room}, throughput = {{f32 = 5.0e10}}, membw = 1.0e10"
    module = _gradient(ATTENTION, devices(*[small] * members))
    with module.context:
        choice = Search.of(module).run(keep=24)
    assert choice.best.candidate.axes == {"sp": members}
    assert choice.flags(choice.best.candidate) == ["--mesh", f"sp={members}"]
    others = [j for j in choice.judged if j.candidate.sp == 1]
    assert others
    assert not any(j.fits for j in others)


def test_a_plan_with_a_sequence_gives_the_whole_gradient() -> None:
    _agrees(ATTENTION, {"sp": 4}, *_normal((WIDTH, WIDTH), (1, TOKENS, WIDTH)))


@pytest.mark.parametrize("axes", [{"ep": 4}, {"dp": 2, "ep": 2}], ids=str)
def test_a_plan_with_experts_gives_the_whole_gradient(axes: dict[str, int]) -> None:
    shapes = (EXPERTS, 4, 6), (EXPERTS, 6, 4), (4, EXPERTS), (WIDTH, 4)
    cut = _agrees(MIXTURE, axes, *_normal(*shapes))
    assert cut["up"] == cut["down"] == [["ep"]]
    assert ("x" in cut) == ("dp" in axes)


def test_a_mesh_with_ep_cuts_experts() -> None:
    module = _gradient(MIXTURE)
    with module.context:
        annotate(module, Mesh("m", {"ep": 2, "tp": 2}), None)
        said = {
            string(a, NAME): str(a[SHARDING]) if SHARDING in a else ""
            for a in argument_attributes(find(module, "main"))
        }
    assert all('[["ep"], [], []]' in said[name] for name in ("up", "down"))


def test_experts_are_a_group_of_their_own() -> None:
    module = _gradient(MIXTURE)
    with module.context:
        groups = tensor_groups.by_axis(find(module, "main"), 2)
    (experts,) = groups["ep", 2]
    assert {"up": 0, "down": 0}.items() <= experts.cut.items()
    assert all("up" not in g.cut or g.cut["up"] for g in groups["tp", 2])
    assert ("sp", 2) not in groups


def test_there_is_no_sequence_to_cut() -> None:
    module = _gradient(MIXTURE, devices(FAST, FAST))
    with (
        module.context,
        pytest.raises(PassError, match='"sp" needs a sequence, "ep" experts'),
    ):
        Search.of(module, axes={"sp": 2}).run()
