"""Attention of a sequence that is cut: `passes/sharding/rules/attention.py`."""

from collections import Counter

import numpy as np
import pytest
from helpers.oracles.spmd import PLAN, partitioned

from pcp.compiler.catalog import pipeline
from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations

WIDTH = 4


def _program(heads: int, tokens: int, axes: dict[str, int], cut: str) -> str:
    """Causal attention by [head, position, width], cut as [., `cut`, .] says."""
    sizes = ", ".join(f'#pcp.axis<"{axis}", {n}>' for axis, n in axes.items())
    sharding = f"pcp.sharding = #pcp.sharding<@m, [[], [{cut}], []], [], []>"
    x, s, r = (
        f"tensor<{heads}x{dims}>"
        for dims in (f"{tokens}x{WIDTH}xf32", f"{tokens}x{tokens}xf32", f"{tokens}xf32")
    )
    mask = f"tensor<{tokens}x{tokens}xi"
    ports = ", ".join(f"%{name}: {x} {{{sharding}}}" for name in "qkv")
    batch = "batching_dims = [0] x [0], contracting_dims ="
    whole = s.replace("f32", "i1")
    return f"""
"pcp.mesh"() {{axes = [{sizes}], devices = [], sym_name = "m"}} : () -> ()
func.func @main({ports}) -> ({x} {{{sharding}}}) {{
  %p = stablehlo.dot_general %q, %k, {batch} [2] x [2] : ({x}, {x}) -> {s}
  %i = stablehlo.iota dim = 0 : {mask}32>
  %j = stablehlo.iota dim = 1 : {mask}32>
  %c = stablehlo.compare GE, %i, %j : ({mask}32>, {mask}32>) -> {mask}1>
  %seen = stablehlo.broadcast_in_dim %c, dims = [1, 2] : ({mask}1>) -> {whole}
  %none = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %hidden = stablehlo.broadcast_in_dim %none, dims = [] : (tensor<f32>) -> {s}
  %s = stablehlo.select %seen, %p, %hidden : {whole}, {s}
  %m = stablehlo.reduce(%s init: %none) applies stablehlo.maximum
    across dimensions = [2] : ({s}, tensor<f32>) -> {r}
  %mb = stablehlo.broadcast_in_dim %m, dims = [0, 1] : ({r}) -> {s}
  %d = stablehlo.subtract %s, %mb : {s}
  %e = stablehlo.exponential %d : {s}
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %l = stablehlo.reduce(%e init: %zero) applies stablehlo.add
    across dimensions = [2] : ({s}, tensor<f32>) -> {r}
  %y = stablehlo.dot_general %e, %v, {batch} [2] x [1] : ({s}, {x}) -> {x}
  %lb = stablehlo.broadcast_in_dim %l, dims = [0, 1] : ({r}) -> {x}
  %o = stablehlo.divide %y, %lb : {x}
  return %o : {x}
}}"""


def _attended(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The same in f64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = np.where(np.tri(q.shape[1], dtype=bool), q @ k.swapaxes(1, 2), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)


def _collectives(text: str) -> Counter[str]:
    """Those of the first member, by kind."""
    module = parse(text)
    pipeline(PLAN).run(module)
    with module.context:
        member = next(
            view.operation
            for view in module.body.operations
            if view.operation.name == "builtin.module"
        )
        return Counter(op.name for op in operations(member) if "axes" in op.attributes)


@pytest.mark.parametrize(
    ("heads", "tokens", "axes", "cut", "kinds"),
    [
        (4, 8, {"sp": 4}, '"sp"', {"pcp.all_to_all"}),
        (3, 8, {"sp": 4}, '"sp"', {"pcp.all_gather"}),
        (4, 7, {"sp": 2}, '"sp"', {"pcp.all_gather"}),
        (2, 8, {"a": 2, "b": 2}, '"a", "b"', {"pcp.all_to_all", "pcp.all_gather"}),
    ],
    ids=["heads", "queries", "unequal_parts", "one_axis_each"],
)
def test_the_whole_is_numpys(
    heads: int, tokens: int, axes: dict[str, int], cut: str, kinds: set[str]
) -> None:
    text = _program(heads, tokens, axes, cut)
    assert set(_collectives(text)) == kinds
    random = np.random.default_rng(0)
    given = [
        (2 * random.normal(size=(heads, tokens, WIDTH))).astype(np.float32)
        for _ in range(3)
    ]
    (found,) = partitioned(text, given)
    np.testing.assert_allclose(found, _attended(*given), rtol=1e-5, atol=1e-6)
