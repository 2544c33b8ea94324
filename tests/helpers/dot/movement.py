"""Random programs that move data: padding, slicing, gathering; see `dot_points`."""

import jax
import numpy as np
from helpers.dot.points import Array, Maker, Point, Rng, lowering, shape_of, spread
from jax import lax

# --- data movement ---


def _broadcast_in_dim(rng: Rng) -> Point:
    result = shape_of(rng, 1, 4)
    count = int(rng.integers(0, len(result) + 1))
    dims = sorted(int(d) for d in rng.choice(len(result), count, replace=False))
    shape = [result[d] if rng.random() < 0.6 else 1 for d in dims]
    return lowering(
        lambda x: lax.broadcast_in_dim(x, result, dims), spread(rng, *shape)
    )


def _reshape(rng: Rng) -> Point:
    shape = shape_of(rng, 1, 4)
    cut = int(rng.integers(0, len(shape)))
    joined = (*shape[:cut], int(np.prod(shape[cut:])), 1)
    return lowering(lambda x: x.reshape(joined), spread(rng, *shape))


def _transpose(rng: Rng) -> Point:
    shape = shape_of(rng, 1, 4)
    order = tuple(int(d) for d in rng.permutation(len(shape)))
    return lowering(lambda x: lax.transpose(x, order) * 2, spread(rng, *shape))


def _slice(rng: Rng) -> Point:
    shape = tuple(int(n) for n in rng.integers(1, 6, rng.integers(1, 4)))
    start = [int(rng.integers(0, n)) for n in shape]
    limit = [int(rng.integers(s, n + 1)) for s, n in zip(start, shape, strict=True)]
    strides = [int(k) for k in rng.integers(1, 4, len(shape))]
    return lowering(lambda x: lax.slice(x, start, limit, strides), spread(rng, *shape))


def _pad(rng: Rng) -> Point:
    shape = shape_of(rng, 1, 3)
    config = []
    for n in shape:
        inner = int(rng.integers(0, 3))
        width = n + (n - 1) * inner
        low = int(rng.integers(-1, 3))
        high = int(rng.integers(max(-1, -low - width), 3))
        config.append((low, high, inner))
    value = spread(rng)
    return lowering(lambda x, v: lax.pad(x, v, config), spread(rng, *shape), value)


def _concatenate(rng: Rng) -> Point:
    shape = shape_of(rng, 1, 3)
    dim = int(rng.integers(len(shape)))
    parts = []
    for _ in range(int(rng.integers(1, 4))):
        size = list(shape)
        size[dim] = int(rng.integers(0, 4))
        parts.append(spread(rng, *size))
    return lowering(lambda *xs: lax.concatenate([*xs, xs[0]], dim), *parts)


def _reverse(rng: Rng) -> Point:
    shape = shape_of(rng, 1, 3)
    dims = [d for d in range(len(shape)) if rng.random() < 0.6] or [0]
    return lowering(lambda x: lax.rev(x, dims), spread(rng, *shape))


def _gather(rng: Rng) -> Point:
    """Rows, windows or batches, places twice and outside."""
    x = spread(rng, *(int(n) for n in rng.integers(2, 5, 3)))
    n, m, _ = x.shape
    kind = int(rng.integers(3))
    mode = ("clip", "fill")[rng.integers(2)]
    if kind == 0:
        rows = rng.integers(-n - 2, n + 2, (2, 3)).astype(np.int32)
        return lowering(lambda x, i: x.at[i].get(mode=mode, fill_value=0.0), x, rows)
    if kind == 1:
        numbers = lax.GatherDimensionNumbers((1, 2), (0,), (0, 1))
        starts = rng.integers(-2, 5, (3, 2)).astype(np.int32)
        return lowering(
            lambda x, i: lax.gather(x, i, numbers, (1, 2, x.shape[2]), mode="clip"),
            *(x, starts),
        )
    places = rng.integers(0, m, (n, 2)).astype(np.int32)
    return lowering(lambda x, i: jax.vmap(lambda a, j: a[j])(x, i), x, places)


def _starts(rng: Rng, count: int) -> list[Array]:
    return [np.array(i, np.int32) for i in rng.integers(-2, 5, count)]


def _dynamic_slice(rng: Rng) -> Point:
    shape = shape_of(rng, 1, 3)
    sizes = [int(rng.integers(1, n + 1)) for n in shape]
    return lowering(
        lambda x, *at: lax.dynamic_slice(x, at, sizes),
        *(spread(rng, *shape), *_starts(rng, len(shape))),
    )


def _dynamic_update_slice(rng: Rng) -> Point:
    shape = shape_of(rng, 1, 3)
    sizes = [int(rng.integers(1, n + 1)) for n in shape]
    return lowering(
        lambda x, u, *at: lax.dynamic_update_slice(x, u, at),
        *(spread(rng, *shape), spread(rng, *sizes), *_starts(rng, len(shape))),
    )


def _sort(rng: Rng) -> Point:
    shape = shape_of(rng, 1, 3)
    dim = int(rng.integers(len(shape)))
    x, y = spread(rng, 2, *shape)
    keys = rng.integers(0, 3, shape).astype(np.int32)
    if rng.random() < 0.5:
        return lowering(
            lambda k, x, y: lax.sort((k, x, y), dimension=dim, num_keys=2)[1:],
            *(keys, x, y),
        )
    return lowering(lambda x, y: lax.sort((x, y), dimension=dim), x, y)


def _scatter(rng: Rng) -> Point:
    """Every combiner; places twice where it is defined, and outside."""
    n, m = (int(k) for k in rng.integers(2, 5, 2))
    x, u = spread(rng, n, m), spread(rng, 3, m, low=0.31, high=0.89)
    combiner = ("add", "multiply", "min", "max", "set")[rng.integers(5)]
    many = combiner in ("add", "max", "min")
    # Those that are alone: a permutation of n + 2, of which two are outside.
    places = rng.integers(0, n + 1, 3) if many else rng.permutation(n + 2)[:3]
    return lowering(
        lambda x, i, u: getattr(x.at[i], combiner)(
            u, mode="drop", unique_indices=not many
        ),
        *(x, places.astype(np.int32), u),
    )


PROGRAMS: dict[str, Maker] = {
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.gather": _gather,
    "stablehlo.pad": _pad,
    "stablehlo.reshape": _reshape,
    "stablehlo.reverse": _reverse,
    "stablehlo.scatter": _scatter,
    "stablehlo.slice": _slice,
    "stablehlo.sort": _sort,
    "stablehlo.transpose": _transpose,
}
