"""Reductions whose initial value is active, or whose body does not commute."""

import jax.numpy as jnp
import numpy as np
from helpers.cases.composed import main
from helpers.oracles.jax_gradients import Case, array

V = array(6)
TIES = np.array([[1, 3, 3], [2, 2, 2], [0, -1, 0]], np.float32)
S, M, R = "tensor<f32>", "tensor<3x3xf32>", "tensor<3xf32>"


def _reduce_text(op: str) -> str:
    return main(
        f"%x: {M}, %i: {S}",
        f"%y = stablehlo.reduce(%x init: %i) applies stablehlo.{op} across "
        f"dimensions = [1] : ({M}, {S}) -> {R}",
        ("%y", R),
    )


def _shared(x, i):
    """The largest of a row and i; equal ones share the derivative."""
    wide = jnp.concatenate([x, jnp.broadcast_to(i, (3, 1))], 1)
    return wide.max(1)


def _lowest(x, i):
    return -_shared(-x, -i)


def _recurrence_text(n: int) -> str:
    """y ← a y + b from the left, by a body that is associative and does not commute."""
    t = f"tensor<{n}xf32>"
    return main(
        f"%a: {t}, %b: {t}, %i: {S}, %j: {S}",
        f"""%r:2 = stablehlo.reduce(%a init: %i), (%b init: %j)
      across dimensions = [0] : ({t}, {t}, {S}, {S}) -> ({S}, {S})
    reducer(%p: {S}, %q: {S}) (%s: {S}, %t: {S}) {{
      %x = stablehlo.multiply %p, %q : {S}
      %y = stablehlo.multiply %q, %s : {S}
      %z = stablehlo.add %y, %t : {S}
      stablehlo.return %x, %z : {S}, {S}
    }}""",
        ("%r#0", S),
        ("%r#1", S),
    )


def _recurrence(a, b, x, y):
    for k in range(a.shape[0]):
        x, y = x * a[k], a[k] * y + b[k]
    return x, y


def _window_text(result: str, attributes: str) -> str:
    return main(
        f"%x: tensor<6xf32>, %i: {S}",
        f"""%y = "stablehlo.reduce_window"(%x, %i) ({{
  ^bb0(%a: {S}, %b: {S}):
    %s = stablehlo.add %a, %b : {S}
    stablehlo.return %s : {S}
  }}) {{{attributes}}} : (tensor<6xf32>, {S}) -> {result}""",
        ("%y", result),
    )


ONE, TWO = np.float32(1.5), np.float32(2)
INITIAL = [
    Case("sum_init", lambda x, i: x.sum(1) + i, (TIES, ONE), text=_reduce_text("add")),
    Case(
        "sum_init_only",
        lambda x, i: x.sum(1) + i,
        (TIES, ONE),
        text=_reduce_text("add"),
        wrt=(1,),
    ),
    Case("max_init", _shared, (TIES, ONE), text=_reduce_text("maximum")),
    Case("max_init_tie", _shared, (TIES, TWO), text=_reduce_text("maximum")),
    Case("min_init", _lowest, (TIES, ONE), text=_reduce_text("minimum")),
    Case(
        "product_init",
        lambda x, i: i * x.prod(1),
        (TIES, TWO),
        text=_reduce_text("multiply"),
    ),
    *(
        Case(f"recurrence_init_{n}", _recurrence, (*array(2, n), ONE, TWO), text=t)
        for n, t in ((n, _recurrence_text(n)) for n in (0, 1, 4, 7))
    ),
    Case(
        "window_init",
        lambda x, i: x[::2] + x[1::2] + i,
        (V, ONE),
        text=_window_text(
            R,
            "window_dimensions = array<i64: 2>, window_strides = array<i64: 2>",
        ),
    ),
]
