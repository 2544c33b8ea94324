"""Sorts of many elements, through IREE: to the bit what JAX's are, equals in order."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from helpers.oracles.legalized import legalized
from helpers.oracles.together import Together
from helpers.servers.iree_server import Iree
from jax import lax

DRAW = np.random.default_rng(0)


def _floats(kind: Any, *shape: int) -> np.ndarray:
    """Few numbers, so that many are equal, both zeros and infinities, and NaN."""
    edges = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -2.5, 1e-3]
    return DRAW.choice(np.array(edges, kind), shape)


def _by_two(*columns: Any) -> Any:
    """Two columns decide; the third one, and the positions, go along."""
    return lax.sort(columns, dimension=0, num_keys=2, is_stable=True)


def _in_turn(x: Any) -> Any:
    """A loop in which every turn sorts a row, and puts it back in order."""

    def turn(total: Any, row: Any) -> Any:
        order = jnp.argsort(row, descending=True)
        return total + row[order[0]], row[order][jnp.argsort(order)]

    return lax.scan(turn, 0.0, x)


WHOLE = DRAW.integers(-3, 3, (260, 3))
Sort = tuple[Callable[..., Any], tuple[np.ndarray, ...]]
COLUMNS = (WHOLE.astype("i1"), _floats("c8", 260, 3), _floats("f2", 260, 3))
SORTS: dict[str, Sort] = {
    "floats": (jnp.sort, (_floats("f4", 300),)),
    "columns": (_by_two, COLUMNS),
}
MORE: dict[str, Sort] = {
    "positions": (jnp.argsort, (_floats(ml_dtypes.bfloat16, 256),)),
    "masks": (lambda x: lax.sort((x, x), dimension=1), (WHOLE.T > 0,)),
    "rows of few": (jnp.sort, (_floats("f4", 2, 16, 67),)),
    "in turn": (_in_turn, (DRAW.normal(size=(3, 257)).astype("f4"),)),
}
SORTED, MORE_SORTED = Together(SORTS), Together(MORE)


def _as_jax(iree: Iree, sorted_: Together, case: str) -> None:
    function, arguments = sorted_.functions[case]
    want = jax.tree.leaves(jax.jit(function)(*arguments))
    for ours, theirs in zip(sorted_.results(iree, case), want, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize("case", SORTS)
def test_a_network_sorts_as_jax_does(iree: Iree, case: str) -> None:
    _as_jax(iree, SORTED, case)


@pytest.mark.slow  # the quick one has two
@pytest.mark.parametrize("case", MORE)
def test_a_network_sorts_more(iree: Iree, case: str) -> None:
    _as_jax(iree, MORE_SORTED, case)


def _text(comparison: str, length: int = 300, values: str = "") -> str:
    of = f"tensor<{length}xf32>"
    return legalized(f"""
    func.func @main(%x: {of}, %s: tensor<f32>) -> {of} {{
      %0 = "stablehlo.sort"(%x) <{{dimension = 0 : i64}}> ({{
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        {values}
        %p = stablehlo.{comparison} : (tensor<f32>, tensor<f32>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      }}) : ({of}) -> {of}
      return %0 : {of}
    }}""")


@pytest.mark.slow  # a module of its own
def test_no_element_is_lost_by_a_comparator_that_is_no_order(iree: Iree) -> None:
    """`<=` calls equals each less than the other, and NaN is neither."""
    x = _floats("f4", 300)
    (found,) = iree.run(_text("compare LE, %a, %b"), [x, np.float32(0)])
    bits = np.asarray(found).view("u4"), x.view("u4")
    np.testing.assert_array_equal(*(np.sort(each) for each in bits))


@pytest.mark.slow  # a module of its own
def test_a_comparator_reads_a_scalar_from_outside(iree: Iree) -> None:
    """The one that is nearer to it comes first."""
    near = """%c = stablehlo.subtract %a, %s : tensor<f32>
        %d = stablehlo.subtract %b, %s : tensor<f32>
        %e = stablehlo.abs %c : tensor<f32>
        %f = stablehlo.abs %d : tensor<f32>"""
    x = DRAW.normal(size=300).astype("f4")
    (found,) = iree.run(_text("compare LT, %e, %f", values=near), [x, np.float32(0.5)])
    np.testing.assert_array_equal(found, x[np.argsort(np.abs(x - np.float32(0.5)))])


def test_iree_sorts_few() -> None:
    assert "stablehlo.while" not in _text("compare LT, %a, %b", 255)
    assert "stablehlo.sort" not in _text("compare LT, %a, %b", 256)


def test_of_a_million_the_program_is_as_short() -> None:
    """But for what fills rows up, which 300 have and 2^20 have not."""
    short, long = (
        _text("compare LT, %a, %b", count).count(" = ") for count in (300, 2**20 - 1)
    )
    assert short == long
