"""Derivative cases of CHLO ops that stand for others: broadcasting, ragged products."""

from itertools import pairwise

import jax.numpy as jnp
import numpy as np
from helpers.cases.chlo import zeta
from helpers.cases.composed import main
from helpers.oracles.jax_gradients import Case, array, positive
from jax import lax

F = "tensor<4x5xf32>"
X, ROW = array(4, 5), array(5)
BINARY = {
    "add": jnp.add,
    "atan2": jnp.arctan2,
    "divide": jnp.divide,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "multiply": jnp.multiply,
    "power": jnp.power,
    "remainder": lambda a, b: lax.rem(*jnp.broadcast_arrays(a, b)),
    "subtract": jnp.subtract,
}


def _broadcasting(op: str) -> str:
    return main(
        f"%x: {F}, %y: tensor<5xf32>",
        f"%z = chlo.broadcast_{op} %x, %y : ({F}, tensor<5xf32>) -> {F}",
        ("%z", F),
    )


def _complex(x, y):
    z = lax.complex(x, jnp.broadcast_to(y, x.shape))
    return (z * z).real


COMPLEX = main(
    f"%x: {F}, %y: tensor<5xf32>",
    f"""%z = chlo.broadcast_complex %x, %y
    : ({F}, tensor<5xf32>) -> tensor<4x5xcomplex<f32>>
  %q = stablehlo.multiply %z, %z : tensor<4x5xcomplex<f32>>
  %r = stablehlo.real %q : (tensor<4x5xcomplex<f32>>) -> {F}""",
    ("%r", F),
)
SELECT = main(
    f"%x: {F}, %y: tensor<5xf32>",
    f"""%p = chlo.broadcast_compare %x, %y
    {{comparison_direction = #chlo<comparison_direction LT>}}
    : ({F}, tensor<5xf32>) -> tensor<4x5xi1>
  %z = chlo.broadcast_select %p, %x, %y
    : (tensor<4x5xi1>, {F}, tensor<5xf32>) -> {F}""",
    ("%z", F),
)


def _ragged_text(lhs: str, rhs: str, sizes: str, result: str, numbers: str) -> str:
    return main(
        f"%x: {lhs}, %w: {rhs}, %g: {sizes}",
        f"""%y = "chlo.ragged_dot"(%x, %w, %g) {{ragged_dot_dimension_numbers =
    #chlo.ragged_dot<{numbers}>,
    precision_config = [#chlo<precision DEFAULT>, #chlo<precision HIGHEST>]}}
    : ({lhs}, {rhs}, {sizes}) -> {result}""",
        ("%y", result),
    )


def _ragged(numbers):
    return lambda x, w, g: lax.ragged_dot_general(x, w, g, numbers)


def _contracted(x, w, g):
    """With the sizes of its case; jax has no derivative of this form."""
    ends = (0, 2, 2, 5)
    return jnp.stack([x[:, a:b] @ w[a:b] for a, b in pairwise(ends)])


def _by_rows(x, w, g):
    """Row by row, with a derivative of every order; jax's has only the first."""
    end = jnp.cumsum(g)
    row = np.arange(len(x))[:, None]
    member = (row < end) & (row >= end - g)
    return jnp.einsum("mk,gkn,mg->mn", x, w, member.astype(x.dtype))


def _numbers(contract, batch, ragged, group):
    return lax.RaggedDotDimensionNumbers((contract, batch), [ragged], group)


_RAGGED_ROWS = _ragged_text(
    "tensor<6x5xf32>",
    "tensor<3x5x2xf32>",
    "tensor<3xi32>",
    "tensor<6x2xf32>",
    "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [1], "
    "lhs_ragged_dimensions = [0], rhs_group_dimensions = [0]",
)
RAGGED = [
    Case(
        "ragged_rows",
        lax.ragged_dot,
        (array(6, 5), array(3, 5, 2), np.array([1, 3, 1], np.int32)),
        text=_RAGGED_ROWS,
    ),
    Case(
        "ragged_rows_written_out",
        _by_rows,
        (array(6, 5), array(3, 5, 2), np.array([1, 3, 1], np.int32)),
        text=_RAGGED_ROWS,
    ),
    Case(
        "ragged_rows_batched",
        _ragged(_numbers(([2], [2]), ([0], [1]), 1, [0])),
        (array(2, 4, 5), array(3, 2, 5, 3), np.array([[1, 3, 0], [2, 1, 1]], np.int32)),
        text=_ragged_text(
            "tensor<2x4x5xf32>",
            "tensor<3x2x5x3xf32>",
            "tensor<2x3xi32>",
            "tensor<2x4x3xf32>",
            "lhs_batching_dimensions = [0], rhs_batching_dimensions = [1], "
            "lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [2], "
            "lhs_ragged_dimensions = [1], rhs_group_dimensions = [0]",
        ),
    ),
    Case(
        "ragged_contracting",
        _contracted,
        (array(3, 6), array(6, 2), np.array([2, 0, 3], np.int32)),
        text=_ragged_text(
            "tensor<3x6xf32>",
            "tensor<6x2xf32>",
            "tensor<3xi32>",
            "tensor<3x3x2xf32>",
            "lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0], "
            "lhs_ragged_dimensions = [1]",
        ),
    ),
]
CASES = [
    *(
        Case(
            f"broadcast_{name}", fn, (positive(4, 5), ROW**2), text=_broadcasting(name)
        )
        for name, fn in BINARY.items()
    ),
    Case("broadcast_complex", _complex, (X, ROW), text=COMPLEX),
    Case(
        "broadcast_select", lambda x, y: jnp.where(x < y, x, y), (X, ROW), text=SELECT
    ),
    Case(
        "broadcast_polygamma",
        lambda n, x: lax.polygamma(*jnp.broadcast_arrays(n, x)),
        (np.full((4, 5), 2, np.float32), positive(5)),
        text=_broadcasting("polygamma"),
        wrt=(1,),
        tolerance=1e-4,
    ),
    Case(
        "broadcast_zeta",
        lambda x, q: zeta(*jnp.broadcast_arrays(x, q)),
        (np.full((4, 5), 4, np.float32), positive(5)),
        text=_broadcasting("zeta"),
        wrt=(1,),
        tolerance=1e-4,
    ),
    *RAGGED,
]
