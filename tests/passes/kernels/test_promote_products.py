"""pcp-promote-products: bf16's and f16's products have the numbers that f32's have."""

import ml_dtypes
import numpy as np
import pytest
from helpers.servers.iree_server import Iree

from pcp.compiler.catalog import pipeline
from pcp.compiler.targets import TARGETS
from pcp.dialect.context import parse

TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}

#: Both directions of a layer, batched, and in few rows; read in more than one way.
PROGRAM = """
func.func @main(%x: tensor<4x32x48xT>, %w: tensor<48x64xT>, %y: tensor<4x32x48xT>)
    -> (tensor<4x32x64xf32>, tensor<4x32x32xf32>, tensor<48x48xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [2] x [0]
    : (tensor<4x32x48xT>, tensor<48x64xT>) -> tensor<4x32x64xf32>
  %1 = stablehlo.dot_general %x, %y, batching_dims = [0] x [0],
    contracting_dims = [2] x [2] : (tensor<4x32x48xT>, tensor<4x32x48xT>)
    -> tensor<4x32x32xf32>
  %2 = stablehlo.dot_general %x, %y, contracting_dims = [0, 1] x [0, 1]
    : (tensor<4x32x48xT>, tensor<4x32x48xT>) -> tensor<48x48xf32>
  return %0, %1, %2 : tensor<4x32x64xf32>, tensor<4x32x32xf32>, tensor<48x48xf32>
}
"""


@pytest.mark.parametrize("name", TYPES)
def test_products_are_those_of_f32(name: str, iree: Iree) -> None:
    passes = [p for p in TARGETS["cpu:host"].passes if "products" in p]
    assert passes, "the target has to run the pass"
    module = parse(PROGRAM.replace("T>", f"{name}>"))
    module.context.allow_unregistered_dialects = True  # IREE's own
    pipeline(",".join(passes)).run(module)
    assert str(module).count("flow.dispatch.region") >= 3
    random = np.random.default_rng(0)
    shapes = ((4, 32, 48), (48, 64), (4, 32, 48))
    x, w, y = (random.normal(size=s).astype(TYPES[name]) for s in shapes)
    (got,) = iree.run_all(str(module), {"main": [x, w, y]})
    assert not isinstance(got, str), got
    a, b, c = (v.astype(np.float64) for v in (x, w, y))
    wants = (a @ b, a @ c.transpose(0, 2, 1), np.einsum("bij,bik->jk", a, c))
    for value, want in zip(got, wants, strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-4)
