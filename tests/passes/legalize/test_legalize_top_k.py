"""The largest of many, through IREE: in IEEE 754's total order, as CHLO says."""

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from helpers.oracles.legalized import legalized
from helpers.servers.iree_server import Iree
from jax import lax

from pcp.passes.legalize.sorts.top_k import MANY

ROWS, COUNT, WANTED = (2, 3), MANY + 37, 9
TYPES = {"f32": "f4", "f64": "f8", "f16": "f2", "bf16": ml_dtypes.bfloat16}


def _rows(kind: Any) -> np.ndarray:
    """Numbers with equal ones among the largest; a row of each edge."""
    x = np.random.default_rng(0).normal(size=(*ROWS, COUNT)).astype(kind)
    x[0, 0, 5::100] = 7.0
    x[0, 1, 8:11] = [np.nan, np.inf, -np.nan]
    x[0, 2] = -np.inf
    x[1, 0] = np.where(np.arange(COUNT) % 500 == 3, 0.0, -0.0)
    x[1, 1] = -np.abs(x[1, 1])
    return x


def _expected(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    word = np.dtype(f"i{x.dtype.itemsize}")
    bits = x.view(word)
    keys = bits ^ ((bits >> (8 * word.itemsize - 1)) & np.iinfo(word).max)
    places = np.argsort(-keys.astype(object), axis=-1, kind="stable")[..., :WANTED]
    return np.take_along_axis(x, places, -1), places


@pytest.mark.parametrize(
    "element",
    ["f32", "bf16", *(pytest.param(t, marks=pytest.mark.slow) for t in ("f64", "f16"))],
)
def test_few_of_many(iree: Iree, element: str) -> None:
    """A loop and no sort; values to the bit, and the first of equal ones first."""
    x = _rows(np.dtype(TYPES[element]))
    shape = "x".join(map(str, x.shape))
    picked = f"{ROWS[0]}x{ROWS[1]}x{WANTED}"
    types = f"tensor<{picked}x{element}>, tensor<{picked}xi32>"
    text = legalized(f"""
    func.func @main(%x: tensor<{shape}x{element}>) -> ({types}) {{
      %v, %i = chlo.top_k(%x, k = {WANTED}) : tensor<{shape}x{element}> -> ({types})
      return %v, %i : {types}
    }}""")
    assert "stablehlo.sort" not in text
    values, places = iree.run(text, [x])
    want, at = _expected(x)
    np.testing.assert_array_equal(places, at)
    bits = f"u{x.dtype.itemsize}"
    known = ~np.isnan(want.astype(np.float64))
    got = np.asarray(values).view(bits)
    np.testing.assert_array_equal(got[known], want.view(bits)[known])
    assert np.isnan(np.asarray(values).view(x.dtype).astype(float)[~known]).all()


def test_of_few_all_are_sorted() -> None:
    """None is looked for by a maximum of all."""
    text = jax.jit(lambda x: lax.top_k(x, MANY)).lower(np.zeros(MANY + 1)).as_text()
    text = legalized(text)
    assert "stablehlo.while" in text
    assert "stablehlo.reduce" not in text
