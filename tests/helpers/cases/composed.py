"""Derivative cases of ops that stand for others."""

import jax.numpy as jnp
import numpy as np
from helpers.oracles.jax_gradients import Case, array, positive
from jax import lax

X, Y, ROW = array(4, 5), array(5, 3), array(5)
IMAGE = array(2, 3, 4, 5)
EPSILON = 0.01


def main(arguments: str, body: str, *results: tuple[str, str]) -> str:
    """`@main` of one body; results are (value, type)."""
    types = ", ".join(t for _, t in results)
    values = ", ".join(v for v, _ in results)
    return f"""
func.func @main({arguments}) -> ({types}) {{
  {body}
  return {values} : {types}
}}"""


# --- batch normalization, features along dimension 1 ---


def _spread(v):
    return v[None, :, None, None]


def _normalized(x, scale, offset, mean, variance):
    unit = (x - _spread(mean)) / jnp.sqrt(_spread(variance) + EPSILON)
    return unit * _spread(scale) + _spread(offset)


def _training(x, scale, offset):
    mean = x.mean((0, 2, 3))
    variance = ((x - _spread(mean)) ** 2).mean((0, 2, 3))
    return _normalized(x, scale, offset, mean, variance), mean, variance


def _gradient(x, scale, mean, variance, g):
    """The derivative of `_training` at given statistics, as the op defines it."""
    count = x.size / x.shape[1]
    deviation = jnp.sqrt(variance + EPSILON)
    centered = x - _spread(mean)
    shift = g.sum((0, 2, 3))
    tilt = (g * centered).sum((0, 2, 3))
    inner = count * g - _spread(shift) - centered * _spread(tilt / deviation**2)
    return _spread(scale / deviation / count) * inner, tilt / deviation, shift


WIDE, NARROW = "tensor<2x3x4x5xf32>", "tensor<3xf32>"
NORM = f"{{epsilon = {EPSILON} : f32, feature_index = 1 : i64}}"
SCALE, OFFSET, MEAN, VARIANCE = (
    array(3),
    array(3, seed=1),
    array(3, seed=2),
    positive(3),
)
TRAINING = main(
    f"%x: {WIDE}, %s: {NARROW}, %o: {NARROW}",
    f'%y:3 = "stablehlo.batch_norm_training"(%x, %s, %o) {NORM} : '
    f"({WIDE}, {NARROW}, {NARROW}) -> ({WIDE}, {NARROW}, {NARROW})",
    ("%y#0", WIDE),
    ("%y#1", NARROW),
    ("%y#2", NARROW),
)
INFERENCE = main(
    f"%x: {WIDE}, %s: {NARROW}, %o: {NARROW}, %m: {NARROW}, %v: {NARROW}",
    f'%y = "stablehlo.batch_norm_inference"(%x, %s, %o, %m, %v) {NORM} : '
    f"({WIDE}, {', '.join([NARROW] * 4)}) -> {WIDE}",
    ("%y", WIDE),
)
GRADIENT = main(
    f"%x: {WIDE}, %s: {NARROW}, %m: {NARROW}, %v: {NARROW}, %g: {WIDE}",
    f'%y:3 = "stablehlo.batch_norm_grad"(%x, %s, %m, %v, %g) {NORM} : '
    f"({WIDE}, {NARROW}, {NARROW}, {NARROW}, {WIDE}) -> ({WIDE}, {NARROW}, {NARROW})",
    ("%y#0", WIDE),
    ("%y#1", NARROW),
    ("%y#2", NARROW),
)
NORMS = [
    Case("batch_norm_training", _training, (IMAGE, SCALE, OFFSET), text=TRAINING),
    Case(
        "batch_norm_training_image",
        lambda x: _training(x, SCALE, OFFSET),
        (IMAGE,),
        text=TRAINING.replace(
            f"%x: {WIDE}, %s: {NARROW}, %o: {NARROW}) -> ", f"%x: {WIDE}) -> "
        ).replace(
            "{\n  %y:3",
            "{\n"
            + "\n".join(
                f"  %{n} = stablehlo.constant dense<{v.tolist()}> : {NARROW}"
                for n, v in (("s", SCALE), ("o", OFFSET))
            )
            + "\n  %y:3",
        ),
    ),
    Case(
        "batch_norm_inference",
        _normalized,
        (IMAGE, SCALE, OFFSET, MEAN, VARIANCE),
        text=INFERENCE,
    ),
    Case(
        "batch_norm_grad",
        _gradient,
        (IMAGE, SCALE, MEAN, VARIANCE, array(2, 3, 4, 5, seed=1)),
        text=GRADIENT,
        tolerance=3e-5,
    ),
]

# --- structure ---

F, S = "tensor<4x5xf32>", "tensor<f32>"
MAP = main(
    f"%x: {F}, %y: {F}, %c: {S}",
    f"""%k = stablehlo.constant dense<2.0> : {S}
  %z = "stablehlo.map"(%x, %y) ({{
  ^bb0(%a: {S}, %b: {S}):
    %m = stablehlo.multiply %a, %b : {S}
    %s = stablehlo.sine %m : {S}
    %q = stablehlo.multiply %s, %k : {S}
    %r = stablehlo.add %q, %c : {S}
    stablehlo.return %r : {S}
  }}) {{dimensions = array<i64: 0, 1>}} : ({F}, {F}) -> {F}""",
    ("%z", F),
)
TUPLE = main(
    f"%x: {F}, %y: {F}",
    f"""%t = stablehlo.tuple %x, %y : tuple<{F}, {F}>
  %n = stablehlo.tuple %t, %x : tuple<tuple<{F}, {F}>, {F}>
  %u = stablehlo.get_tuple_element %n[0]
    : (tuple<tuple<{F}, {F}>, {F}>) -> tuple<{F}, {F}>
  %a = stablehlo.get_tuple_element %u[1] : (tuple<{F}, {F}>) -> {F}
  %b = stablehlo.get_tuple_element %n[1] : (tuple<tuple<{F}, {F}>, {F}>) -> {F}
  %c = stablehlo.multiply %a, %b : {F}""",
    ("%c", F),
)
STRUCTURE = [
    Case(
        "map",
        lambda x, y, c: 2 * jnp.sin(x * y) + c,
        (X, X + 1, np.float32(3)),
        text=MAP,
    ),
    Case("tuple", lambda x, y: x * y, (X, X + 1), text=TUPLE),
]

# --- dropped from the specification ---

DROPPED = [
    Case(
        "broadcast",
        lambda x: jnp.broadcast_to(x, (2, 3, 4, 5)),
        (X,),
        text=main(
            f"%x: {F}",
            f'%y = "stablehlo.broadcast"(%x) {{broadcast_sizes = array<i64: 2, 3>}} '
            f": ({F}) -> tensor<2x3x4x5xf32>",
            ("%y", "tensor<2x3x4x5xf32>"),
        ),
    ),
    Case(
        "dot",
        lambda x, y: x @ y,
        (X, Y),
        text=main(
            f"%x: {F}, %y: tensor<5x3xf32>",
            f'%z = "stablehlo.dot"(%x, %y) : ({F}, tensor<5x3xf32>) -> tensor<4x3xf32>',
            ("%z", "tensor<4x3xf32>"),
        ),
    ),
    Case(
        "einsum",
        lambda x, y: jnp.einsum("ij,jk->ki", x, y),
        (X, Y),
        text=main(
            f"%x: {F}, %y: tensor<5x3xf32>",
            '%z = "stablehlo.einsum"(%x, %y) {einsum_config = "ij,jk->ki"} '
            f": ({F}, tensor<5x3xf32>) -> tensor<3x4xf32>",
            ("%z", "tensor<3x4xf32>"),
        ),
    ),
    Case(
        "unary_einsum",
        lambda x: x.sum(0),
        (X,),
        text=main(
            f"%x: {F}",
            '%z = "stablehlo.unary_einsum"(%x) {einsum_config = "ij->j"} '
            f": ({F}) -> tensor<5xf32>",
            ("%z", "tensor<5xf32>"),
        ),
    ),
    Case(
        "torch_index_select",
        lambda x, i: x[:, i],
        (X, np.array([3, 0, 3], np.int32)),
        text=main(
            f"%x: {F}, %i: tensor<3xi32>",
            '%z = "stablehlo.torch_index_select"(%x, %i) {dim = 1 : i64, '
            f"batch_dims = 0 : i64}} : ({F}, tensor<3xi32>) -> tensor<4x3xf32>",
            ("%z", "tensor<4x3xf32>"),
        ),
    ),
]

# --- shapes that are constant after all ---


def _ints(name: str, *values: int) -> str:
    dense = f"dense<{list(values)}> : tensor<{len(values)}xi64>"
    return f"%{name} = stablehlo.constant {dense}"


I2 = "tensor<2xi64>"
DYNAMIC = [
    Case(
        "dynamic_reshape",
        lambda x: x.reshape(2, 10),
        (X,),
        text=main(
            f"%x: {F}",
            f"{_ints('n', 2, 10)}\n  %y = stablehlo.dynamic_reshape %x, %n "
            f": ({F}, {I2}) -> tensor<2x10xf32>",
            ("%y", "tensor<2x10xf32>"),
        ),
    ),
    Case(
        "dynamic_broadcast_in_dim",
        lambda x: jnp.broadcast_to(x, (4, 5)),
        (ROW,),
        text=main(
            "%x: tensor<5xf32>",
            f"{_ints('n', 4, 5)}\n  %y = stablehlo.dynamic_broadcast_in_dim %x, %n, "
            f"dims = [1] : (tensor<5xf32>, {I2}) -> {F}",
            ("%y", F),
        ),
    ),
    Case(
        "dynamic_pad",
        lambda x, v: lax.pad(x, v, ((1, 0, 1), (-1, 2, 0))),
        (X, np.float32(2)),
        text=main(
            f"%x: {F}, %v: {S}",
            "\n  ".join(
                (
                    _ints("l", 1, -1),
                    _ints("h", 0, 2),
                    _ints("i", 1, 0),
                    "%y = stablehlo.dynamic_pad %x, %v, %l, %h, %i "
                    f": ({F}, {S}, {I2}, {I2}, {I2}) -> tensor<8x6xf32>",
                )
            ),
            ("%y", "tensor<8x6xf32>"),
        ),
    ),
    Case(
        "real_dynamic_slice",
        lambda x: x[1:4:2, 0:5:3],
        (X,),
        text=main(
            f"%x: {F}",
            "\n  ".join(
                (
                    _ints("a", 1, 0),
                    _ints("b", 4, 5),
                    _ints("s", 2, 3),
                    "%y = stablehlo.real_dynamic_slice %x, %a, %b, %s "
                    f": ({F}, {I2}, {I2}, {I2}) -> tensor<2x2xf32>",
                )
            ),
            ("%y", "tensor<2x2xf32>"),
        ),
    ),
    Case(
        "dynamic_gather",
        lambda x, i: x[i],
        (X, np.array([2, 0, 2], np.int32)),
        text=main(
            f"%x: {F}, %i: tensor<3xi32>",
            f"""{_ints("n", 1, 5)}
  %y = "stablehlo.dynamic_gather"(%x, %i, %n) {{dimension_numbers =
    #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
    start_index_map = [0], index_vector_dim = 1>}}
    : ({F}, tensor<3xi32>, {I2}) -> tensor<3x5xf32>""",
            ("%y", "tensor<3x5xf32>"),
        ),
    ),
    Case(
        "dynamic_conv",
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), ((1, 0), (0, 1))),
        (array(1, 2, 4, 5), array(3, 2, 2, 2)),
        text=main(
            "%x: tensor<1x2x4x5xf32>, %w: tensor<3x2x2x2xf32>",
            """%p = stablehlo.constant dense<[[1, 0], [0, 1]]> : tensor<2x2xi64>
  %y = "stablehlo.dynamic_conv"(%x, %w, %p) {dimension_numbers =
    #stablehlo.conv<[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]>,
    feature_group_count = 1 : i64, batch_group_count = 1 : i64}
    : (tensor<1x2x4x5xf32>, tensor<3x2x2x2xf32>, tensor<2x2xi64>)
    -> tensor<1x3x4x5xf32>""",
            ("%y", "tensor<1x3x4x5xf32>"),
        ),
    ),
]

CASES = [*NORMS, *STRUCTURE, *DROPPED, *DYNAMIC]
