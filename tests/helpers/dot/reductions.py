"""Random programs of reductions and windows; see `dot_points`."""

from typing import Any

import jax
import numpy as np
from helpers.dot.points import (
    Maker,
    Point,
    Rng,
    lowering,
    shape_of,
    spread,
)
from jax import lax
from jax import numpy as jnp

# --- reductions and windows ---


def _pick_first(a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
    left = a[0] >= b[0]
    return jnp.where(left, a[0], b[0]), jnp.where(left, a[1], b[1])


def _reduce(rng: Rng) -> Point:
    shape = shape_of(rng, 1, 3)
    axes = tuple(d for d in range(len(shape)) if rng.random() < 0.6)
    x, y = spread(rng, 2, *shape)
    kind = int(rng.integers(6))
    if kind < 4:
        fn = (jnp.sum, jnp.prod, jnp.max, jnp.min)[kind]
        return lowering(lambda x: fn(x * x, axes), x)
    if kind == 4:
        start = (np.float64(-np.inf), np.float64(0))
        return lowering(lambda x, y: lax.reduce((x, y), start, _pick_first, axes), x, y)
    # An associative body that is none of the known ones: a + b + a·b.
    return lowering(
        lambda x: lax.reduce(x, np.float64(0), lambda a, b: a + b + a * b, axes), x
    )


def _window(rng: Rng, rank: int) -> dict[str, Any]:
    return {
        "window_dimensions": [int(k) for k in rng.integers(1, 4, rank)],
        "window_strides": [int(k) for k in rng.integers(1, 3, rank)],
        "padding": [(int(a), int(b)) for a, b in rng.integers(0, 2, (rank, 2))],
    }


def _reduce_window(rng: Rng) -> Point:
    shape = tuple(int(n) for n in rng.integers(3, 6, rng.integers(1, 3)))
    window = _window(rng, len(shape))
    kind = int(rng.integers(3))
    fn, init = ((lax.add, 0.0), (lax.max, -np.inf), (lax.mul, 1.0))[kind]
    if kind != 1:
        window["window_dilation"] = [int(k) for k in rng.integers(1, 3, len(shape))]
        window["padding"] = [(a + 1, b + 1) for a, b in window["padding"]]
    return lowering(
        lambda x: lax.reduce_window(x, np.float64(init), fn, **window),
        spread(rng, *shape),
    )


def _select_and_scatter(rng: Rng) -> Point:
    """What the derivative of a pool is: linear in g, piecewise constant in x."""
    shape = tuple(int(n) for n in rng.integers(3, 6, rng.integers(1, 3)))
    window = _window(rng, len(shape))

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, np.float64(-np.inf), lax.max, **window)

    x = spread(rng, *shape)
    with jax.enable_x64(True):
        g = spread(rng, *pool(x).shape)
    return lowering(lambda x, g: jax.vjp(pool, x)[1](g * g)[0], x, g)


PROGRAMS: dict[str, Maker] = {
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
}
