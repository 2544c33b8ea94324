"""pcp-sink-products: the same numbers, and one kernel for a product and its end."""

import numpy as np
from helpers.servers.iree_server import Iree

from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations
from pcp.passes.kernels.schedule_kernels import ScheduleKernels
from pcp.passes.kernels.sink_products import SinkProducts

X, Y, P, Z, B = (
    f"tensor<{s}xf32>" for s in ("4x64x32", "4x32x64", "4x64x64", "4x64x32", "4x64")
)

#: What attention's derivative ends in: a product, less its rows' sums, times weights.
PROGRAM = f"""
func.func @main(%x: {X}, %y: {Y}, %e: {P}, %z: {Z}) -> ({P}, {P}) {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %p = stablehlo.dot_general %x, %y, batching_dims = [0] x [0],
      contracting_dims = [2] x [1] : ({X}, {Y}) -> {P}
  %w = stablehlo.multiply %z, %x : {Z}
  %s = stablehlo.reduce(%w init: %zero) applies stablehlo.add across dimensions = [2]
      : ({Z}, tensor<f32>) -> {B}
  %r = stablehlo.broadcast_in_dim %s, dims = [0, 1] : ({B}) -> {P}
  %d = stablehlo.subtract %p, %r : {P}
  %m = stablehlo.multiply %d, %e : {P}
  %t = stablehlo.tanh %e : {P}
  return %m, %t : {P}, {P}
}}
"""


def test_same_numbers(iree: Iree) -> None:
    module = parse(PROGRAM)
    module.context.allow_unregistered_dialects = True  # IREE's own
    SinkProducts().run(module)
    ScheduleKernels(vector=512).run(module)
    assert module.operation.verify()
    random = np.random.default_rng(0)
    shapes = ((4, 64, 32), (4, 32, 64), (4, 64, 64), (4, 64, 32))
    x, y, e, z = (random.normal(size=s).astype(np.float32) for s in shapes)
    (got,) = iree.run_all(str(module), {"main": [x, y, e, z]})
    assert not isinstance(got, str), got
    want = (x.astype(float) @ y - (z * x).sum(-1, keepdims=True)) * e
    np.testing.assert_allclose(got[0], want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got[1], np.tanh(e), rtol=1e-5)


def test_the_product_is_behind_the_sum_that_its_end_reads() -> None:
    module = parse(PROGRAM)
    SinkProducts().run(module)
    names = [op.name for op in operations(module)]
    product = names.index("stablehlo.dot_general")
    assert names.index("flow.dispatch.region") < product
    assert names[product + 1] == "stablehlo.subtract"
    again = str(module)
    SinkProducts().run(module)
    assert str(module) == again
