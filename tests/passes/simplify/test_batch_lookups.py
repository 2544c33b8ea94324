"""pcp-batch-lookups: the same rows, whatever is looked up in them."""

import numpy as np
import pytest
from helpers.oracles.spmd import whole
from helpers.random_programs.lookups import random_lookup
from helpers.servers.interpreter import Interpreter

from pcp.dialect.context import parse
from pcp.passes.simplify.batch_lookups import BatchLookups

GATHER = """
func.func @main(%x: tensor<4x6x3xf32>, %labels: tensor<6x2x1xi32>)
    -> tensor<6x2x3xf32> {
  %rows = stablehlo.iota dim = 0 : tensor<6x2x1xi32>
  %i = stablehlo.concatenate %labels, %rows, dim = 2
    : (tensor<6x2x1xi32>, tensor<6x2x1xi32>) -> tensor<6x2x2xi32>
  %y = "stablehlo.gather"(%x, %i) <{
    dimension_numbers = #stablehlo.gather<offset_dims = [2],
      collapsed_slice_dims = [0, 1], start_index_map = [0, 1], index_vector_dim = 2>,
    slice_sizes = array<i64: 1, 1, 3>}>
    : (tensor<4x6x3xf32>, tensor<6x2x2xi32>) -> tensor<6x2x3xf32>
  return %y : tensor<6x2x3xf32>
}"""

SCATTER = """
func.func @main(%x: tensor<6x4xf32>, %labels: tensor<6x1xi32>, %u: tensor<6xf32>)
    -> tensor<6x4xf32> {
  %rows = stablehlo.iota dim = 0 : tensor<6x1xi32>
  %i = stablehlo.concatenate %rows, %labels, dim = 1
    : (tensor<6x1xi32>, tensor<6x1xi32>) -> tensor<6x2xi32>
  %y = "stablehlo.scatter"(%x, %i, %u) <{scatter_dimension_numbers =
    #stablehlo.scatter<inserted_window_dims = [0, 1],
      scatter_dims_to_operand_dims = [0, 1], index_vector_dim = 1>}> ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %s = stablehlo.add %p, %q : tensor<f32>
    stablehlo.return %s : tensor<f32>
  }) : (tensor<6x4xf32>, tensor<6x2xi32>, tensor<6xf32>) -> tensor<6x4xf32>
  return %y : tensor<6x4xf32>
}"""


def _rewritten(text: str) -> str:
    module = parse(text)
    BatchLookups().run(module)
    assert module.operation.verify()
    assert "batching_dims = [" in str(module)
    return str(module)


def test_the_same_rows_with_labels_out_of_range(interpreter: Interpreter) -> None:
    """A gather's are clamped, a scatter's updates are left out."""
    random = np.random.default_rng(0)
    labels = random.integers(-2, 7, (6, 2, 1)).astype(np.int32)
    x, u = (random.normal(size=s).astype(np.float32) for s in ((4, 6, 3), 6))
    table = random.normal(size=(6, 4)).astype(np.float32)
    for text, inputs in (
        (GATHER, [x, labels]),
        (SCATTER, [table, labels[:, 0], u]),
    ):
        (expected,) = interpreter.run(text, inputs)
        (found,) = interpreter.run(_rewritten(text), inputs)
        np.testing.assert_array_equal(found, expected)
    # What was asked for, of the gather, in numpy.
    clamped = labels[..., 0].clip(0, 3)
    want = x[clamped, np.arange(6)[:, None]]
    (found,) = interpreter.run(_rewritten(GATHER), [x, labels])
    np.testing.assert_array_equal(found, want)


def _is_rewritten(seed: int) -> bool:
    """Whether the pass changes a random lookup, which then gives what it gave."""
    text, inputs = random_lookup(seed)
    module = parse(text)
    before = str(module)
    BatchLookups().run(module)
    assert module.operation.verify()
    for old, new in zip(whole(text, inputs), whole(str(module), inputs), strict=True):
        np.testing.assert_array_equal(new, old, err_msg=f"{seed}: {text}")
    return str(module) != before


@pytest.mark.parametrize(
    "seeds", [range(20), pytest.param(range(20, 520), marks=pytest.mark.slow)]
)
def test_random_lookups_stay_what_they_are(seeds, elsewhere) -> None:
    """Windows wider than one, vectors at any place, bytes, batching dims as well."""
    jobs = [elsewhere.submit(_is_rewritten, seed) for seed in seeds]
    assert sum(job.result(600) for job in jobs) >= len(seeds) // 2
