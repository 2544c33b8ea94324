"""Derivative cases of dot_general and convolution."""

import itertools

import jax.numpy as jnp
from helpers.oracles.jax_gradients import Case, array
from jax import lax


def _dot(contract, batch=((), ()), **options):
    numbers = (contract, batch)
    return lambda x, y: lax.dot_general(x, y, numbers, **options)


DOT = [
    Case("matmul", _dot(((1,), (0,))), (array(3, 4), array(4, 5))),
    Case("matmul_transposed", _dot(((0,), (1,))), (array(4, 3), array(5, 4))),
    Case("matmul_both_last", _dot(((1,), (1,))), (array(3, 4), array(5, 4))),
    Case("vectors", _dot(((0,), (0,))), (array(4), array(4))),
    Case("outer", _dot(((), ())), (array(3), array(2, 4))),
    Case("matrix_vector", _dot(((1,), (0,))), (array(3, 4), array(4))),
    Case("batched", _dot(((2,), (1,)), ((0,), (0,))), (array(2, 3, 4), array(2, 4, 5))),
    Case(
        "batch_last", _dot(((0,), (1,)), ((2,), (0,))), (array(4, 3, 2), array(2, 4, 5))
    ),
    Case(
        "two_batches",
        _dot(((3,), (2,)), ((1, 0), (0, 3))),
        (array(2, 3, 5, 4), array(3, 5, 4, 2)),
    ),
    Case("two_contracting", _dot(((1, 2), (0, 1))), (array(3, 4, 5), array(4, 5, 6))),
    Case(
        "contracting_unsorted", _dot(((2, 0), (1, 2))), (array(3, 4, 5), array(6, 5, 3))
    ),
    Case(
        "three_contracting",
        _dot(((0, 3, 1), (2, 0, 3))),
        (array(2, 3, 5, 4), array(4, 7, 2, 3)),
    ),
    Case(
        "all_kinds",
        _dot(((2, 0), (3, 1)), ((3,), (0,))),
        (array(3, 4, 5, 2), array(2, 3, 6, 5)),
    ),
    Case("same_operand", lambda x: x @ x, (array(4, 4),)),
    Case("lhs_only", lambda x: x @ jnp.ones((4, 2)), (array(3, 4),)),
    Case(
        "precision",
        _dot(((1,), (0,)), precision=("highest", "default")),
        (array(3, 4), array(4, 5)),
    ),
    Case(
        "bf16_to_f32",
        lambda x, y: _dot(((1,), (0,)), preferred_element_type=jnp.float32)(
            x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
        ),
        (array(3, 4), array(4, 5)),
        tolerance=1e-2,
    ),
    Case(
        "bf16",
        lambda x, y: (x.astype(jnp.bfloat16) @ y.astype(jnp.bfloat16)).astype(
            jnp.float32
        ),
        (array(3, 4), array(4, 5)),
        tolerance=3e-2,
    ),
    Case(
        "einsum",
        lambda x, y: jnp.einsum("bthd,bshd->bhts", x, y),
        (array(2, 3, 2, 4), array(2, 5, 2, 4)),
    ),
]


def _conv(
    dims=("NHWC", "HWIO", "NHWC"), strides=(1, 1), padding=((0, 0), (0, 0)), **options
):
    def run(x, w):
        return lax.conv_general_dilated(
            x, w, strides, padding, dimension_numbers=dims, **options
        )

    return run


IMAGE, KERNEL = array(2, 6, 7, 3), array(3, 2, 3, 4)
ASYMMETRIC = ((2, 1), (0, 3))
CONVOLUTION = [
    Case("plain", _conv(), (IMAGE, KERNEL)),
    Case("strided", _conv(strides=(2, 3)), (IMAGE, KERNEL)),
    Case("padded", _conv(padding=ASYMMETRIC), (IMAGE, KERNEL)),
    Case("padded_negative", _conv(padding=((-1, 2), (1, -2))), (IMAGE, KERNEL)),
    Case(
        "strided_padded",
        _conv(strides=(2, 2), padding=((1, 1), (1, 1))),
        (IMAGE, KERNEL),
    ),
    Case(
        "dilated_input", _conv(padding=ASYMMETRIC, lhs_dilation=(2, 3)), (IMAGE, KERNEL)
    ),
    Case("dilated_kernel", _conv(rhs_dilation=(2, 3)), (IMAGE, KERNEL)),
    Case(
        "everything",
        _conv(
            strides=(2, 1), padding=ASYMMETRIC, lhs_dilation=(1, 2), rhs_dilation=(2, 1)
        ),
        (IMAGE, KERNEL),
    ),
    Case(
        "channels_first",
        _conv(("NCHW", "OIHW", "NCHW"), padding=((1, 1), (1, 1))),
        (array(2, 3, 6, 7), array(4, 3, 3, 3)),
    ),
    Case(
        "odd_layout",
        _conv(("CWNH", "WOHI", "HNCW"), strides=(1, 2)),
        (array(3, 7, 2, 6), array(2, 4, 3, 3)),
    ),
    Case(
        "grouped", _conv(feature_group_count=3), (array(2, 6, 7, 6), array(3, 2, 2, 9))
    ),
    Case(
        "depthwise",
        _conv(feature_group_count=3, padding=((1, 1), (1, 0))),
        (IMAGE, array(3, 2, 1, 6)),
    ),
    Case(
        "grouped_strided",
        _conv(feature_group_count=2, strides=(2, 2), padding=((1, 1), (1, 1))),
        (array(2, 6, 7, 4), array(3, 3, 2, 6)),
    ),
    Case(
        "batch_grouped",
        _conv(batch_group_count=2),
        (array(4, 6, 7, 3), array(3, 2, 3, 6)),
    ),
    Case(
        "batch_grouped_strided",
        _conv(batch_group_count=2, strides=(2, 1), rhs_dilation=(1, 2)),
        (array(4, 6, 7, 3), array(3, 2, 3, 6)),
    ),
    Case(
        "one_dimension",
        lambda x, w: lax.conv_general_dilated(
            x, w, (2,), [(1, 2)], dimension_numbers=("NWC", "WIO", "NWC")
        ),
        (array(2, 9, 3), array(3, 3, 4)),
    ),
    Case(
        "three_dimensions",
        lambda x, w: lax.conv_general_dilated(x, w, (1, 2, 1), "SAME"),
        (array(1, 2, 4, 4, 4), array(3, 2, 2, 3, 2)),
    ),
    Case("pointwise", _conv(), (IMAGE, array(1, 1, 3, 4))),
    Case(
        "transposed",
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"),
        (IMAGE, array(3, 3, 3, 4)),
    ),
]


def _reversed_text() -> str:
    return """
func.func @main(%x: tensor<2x6x7x3xf32>, %w: tensor<3x2x3x4xf32>)
    -> tensor<2x4x6x4xf32> {
  %y = stablehlo.convolution(%x, %w)
    dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {reverse = [true, false]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<2x6x7x3xf32>, tensor<3x2x3x4xf32>) -> tensor<2x4x6x4xf32>
  return %y : tensor<2x4x6x4xf32>
}"""


CONVOLUTION.append(
    Case(
        "reversed",
        lambda x, w: _conv()(x, w[::-1]),
        (IMAGE, KERNEL),
        text=_reversed_text(),
    )
)


def _sweep():
    """Every combination of small strides, paddings and dilations in one dimension."""
    for stride, lhs, rhs, (low, high) in itertools.product(
        (1, 2, 3), (1, 2), (1, 3), ((0, 0), (2, 1), (-1, 2), (3, -2))
    ):
        name = f"sweep_s{stride}_l{lhs}_r{rhs}_p{low}_{high}".replace("-", "m")

        def run(x, w, stride=stride, lhs=lhs, rhs=rhs, low=low, high=high):
            return lax.conv_general_dilated(
                x, w, (stride,), [(low, high)], (lhs,), (rhs,), ("NWC", "WIO", "NWC")
            )

        yield Case(name, run, (array(2, 8, 2), array(3, 2, 3)))


SWEEP = list(_sweep())
CASES = [*DOT, *CONVOLUTION]
