"""Random programs of contractions, linear algebra and control flow."""

from typing import Any

import numpy as np
from helpers.dot.points import (
    Maker,
    Point,
    Rng,
    lowering,
    shape_of,
    spread,
    type_of,
)
from jax import lax
from jax import numpy as jnp

# --- contractions and linear algebra ---


def _dot_general(rng: Rng) -> Point:
    sizes = {d: int(rng.integers(1, 4)) for d in "bcdmn"}
    lhs = "".join(rng.permutation(list("bcdm")))
    rhs = "".join(rng.permutation(list("bcdn")))
    result = "".join(rng.permutation(list("bmn")))
    return lowering(
        lambda x, y: jnp.einsum(f"{lhs},{rhs}->{result}", x, y),
        spread(rng, *(sizes[d] for d in lhs)),
        spread(rng, *(sizes[d] for d in rhs)),
    )


def _convolution(rng: Rng) -> Point:
    rank = int(rng.integers(0, 3))
    groups = int(rng.integers(1, 3))
    feature, batch = (groups, 1) if rng.random() < 0.5 else (1, groups)
    image = (2 * batch, 2 * feature, *(int(n) for n in rng.integers(4, 7, rank)))
    kernel = (2 * groups, 2, *(int(n) for n in rng.integers(1, 3, rank)))

    def some() -> list[int]:
        return [int(k) for k in rng.integers(1, 3, rank)]

    padding = [(int(a), int(b)) for a, b in rng.integers(-1, 3, (rank, 2))]
    strides, lhs_dilation, rhs_dilation = some(), some(), some()
    return lowering(
        lambda x, w: lax.conv_general_dilated(
            x,
            w,
            strides,
            padding,
            lhs_dilation,
            rhs_dilation,
            feature_group_count=feature,
            batch_group_count=batch,
        ),
        *(spread(rng, *image), spread(rng, *kernel)),
    )


def _fft(rng: Rng) -> Point:
    batch, n = (int(k) for k in rng.integers(1, 5, 2))
    kind = int(rng.integers(3))
    if kind == 0:
        return lowering(
            lambda a, b: _parts(jnp.fft.fft(lax.complex(a, b))),
            *spread(rng, 2, batch, n),
        )
    if kind == 1:
        return lowering(lambda a: _parts(jnp.fft.rfft(a)), spread(rng, batch, n))
    return lowering(
        lambda a, b: jnp.fft.irfft(lax.complex(a, b), n=2 * n),
        *spread(rng, 2, batch, n + 1),
    )


def _parts(z: Any) -> tuple[Any, Any]:
    return lax.real(z), lax.imag(z)


def _triangular_solve(rng: Rng) -> Point:
    n, m = (int(k) for k in rng.integers(1, 4, 2))
    batch = shape_of(rng, 0, 1)
    options = {
        name: bool(rng.random() < 0.5)
        for name in ("left_side", "lower", "transpose_a", "unit_diagonal")
    }
    right = (n, m) if options["left_side"] else (m, n)
    return lowering(
        lambda a, b: lax.linalg.triangular_solve(a, b, **options),
        spread(rng, *batch, n, n) + np.eye(n),
        spread(rng, *batch, *right),
        platform="tpu",
    )


def _cholesky(rng: Rng) -> Point:
    n = int(rng.integers(1, 4))
    batch = shape_of(rng, 0, 1)
    return lowering(
        lambda a: lax.linalg.cholesky(
            a @ jnp.swapaxes(a, -1, -2) + jnp.eye(n), symmetrize_input=False
        ),
        spread(rng, *batch, n, n),
        platform="tpu",
    )


# --- control flow ---


def _case(rng: Rng) -> Point:
    index = np.array(rng.integers(-1, 4), np.int32)
    branches = [lambda x, y: x * y, lambda x, y: jnp.sin(x), lambda x, y: x + y]
    return lowering(
        lambda i, x, y: lax.switch(i, branches, x, y),
        *(index, *spread(rng, 2, *shape_of(rng))),
    )


def _while(rng: Rng) -> Point:
    """Known and unknown trip counts, and a scan that stacks."""
    count = int(rng.integers(0, 5))
    x, y = spread(rng, 2, *shape_of(rng))
    kind = int(rng.integers(3))
    if kind == 0:
        return lowering(
            lambda x, y: lax.fori_loop(0, count, lambda i, c: jnp.sin(c) * y, x), x, y
        )
    if kind == 1:
        return lowering(
            lambda n, x, y: lax.while_loop(
                lambda c: c[0] < n, lambda c: (c[0] + 1, jnp.sin(c[1]) * y), (0, x)
            )[1],
            *(np.array(count), x, y),
        )
    return lowering(
        lambda x, ys: lax.scan(lambda c, r: (c * r, jnp.cos(c) + r), x, ys),
        *(x, spread(rng, count + 1, *x.shape)),
    )


def _if(rng: Rng) -> Point:
    type_ = type_of(shape := shape_of(rng), "f64")
    text = f"""
    func.func @main(%p: tensor<i1>, %x: {type_}, %y: {type_}) -> {type_} {{
      %r = "stablehlo.if"(%p) ({{
        %a = stablehlo.multiply %x, %y : {type_}
        stablehlo.return %a : {type_}
      }}, {{
        %b = stablehlo.sine %y : {type_}
        stablehlo.return %b : {type_}
      }}) : (tensor<i1>) -> {type_}
      return %r : {type_}
    }}"""
    chosen = np.array(rng.random() < 0.5)
    return Point(text, [chosen, *spread(rng, 2, *shape)], (1, 2))


def _barrier(rng: Rng) -> Point:
    x, y = spread(rng, 2, *shape_of(rng))
    return lowering(lambda x, y: lax.optimization_barrier((x * y, y)), x, y)


def _top_k(rng: Rng) -> Point:
    shape = (*shape_of(rng, 0, 2), int(rng.integers(2, 5)))
    count = int(rng.integers(1, shape[-1]))
    return lowering(lambda x: lax.top_k(x, count)[0], spread(rng, *shape))


PROGRAMS: dict[str, Maker] = {
    "chlo.top_k": _top_k,
    "stablehlo.case": _case,
    "stablehlo.cholesky": _cholesky,
    "stablehlo.convolution": _convolution,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.fft": _fft,
    "stablehlo.if": _if,
    "stablehlo.optimization_barrier": _barrier,
    "stablehlo.triangular_solve": _triangular_solve,
    "stablehlo.while": _while,
}
