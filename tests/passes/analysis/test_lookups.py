"""Tables that a program looks up by its data, as torch and JAX write the lookup."""

import numpy as np
import pytest

import pcp
from pcp.compiler.signature import table_rows
from pcp.dialect.context import parse


def test_a_lookup_of_jax_is_found_with_its_rows():
    pytest.importorskip("jax")

    def loss(weights, ids, places, scale):
        small, large = weights
        found = small[ids] + large[places] + large[ids]
        return (found * scale[..., None]).sum()

    weights = [np.zeros((n, 4), np.float32) for n in (7, 9)]
    ids, scale = np.zeros((2, 3), np.int32), np.zeros((2, 3), np.float32)
    module = pcp.from_jax(loss, weights, ids, ids, scale)
    found = list(table_rows(module, "main").values())
    assert found == [7, 9]


GATHER = """
func.func @main(
    %table: tensor<5x4xf32> {{pcp.name = "t", pcp.role = "param"}},
    %ids: tensor<3x1xi64> {{pcp.name = "ids", pcp.role = "data"}}) -> tensor<3x4xf32> {{
  %low = stablehlo.constant dense<0> : tensor<i64>
  %high = stablehlo.constant dense<4> : tensor<i64>
  %kept = stablehlo.clamp %low, %ids, %high
      : (tensor<i64>, tensor<3x1xi64>, tensor<i64>) -> tensor<3x1xi64>
  %0 = "stablehlo.gather"(%table, {indices}) <{{
      dimension_numbers = #stablehlo.gather<offset_dims = [1],
          collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 4>}}>
      : (tensor<5x4xf32>, tensor<3x1xi64>) -> tensor<3x4xf32>
  return %0 : tensor<3x4xf32>
}}
"""


@pytest.mark.parametrize(
    ("indices", "found"), [("%ids", {"ids": 5}), ("%kept", {})], ids=["free", "clamped"]
)
def test_a_clamped_index_is_never_too_large(indices, found):
    assert table_rows(parse(GATHER.format(indices=indices)), "main") == found
