"""The dot test: a derivative rule against the function itself, with no oracle.

For random u and v, ⟨u, J v⟩ must be ⟨Jᵀu, v⟩ (for complex numbers: the real part
of the unconjugated sum). J v comes from a central difference, whose error falls
with h²; Jᵀu from the VJP under test. Compute in float64 where one can.
"""

from collections.abc import Callable, Sequence

import numpy as np

Array = np.ndarray


def pairing(cotangents: Sequence[Array], tangents: Sequence[Array]) -> float:
    """Re Σ c·t, without conjugation."""
    return float(
        sum(np.sum(c * t).real for c, t in zip(cotangents, tangents, strict=True))
    )


def random_like(arrays: Sequence[Array], rng: np.random.Generator) -> list[Array]:
    """Standard normal arrays of the same shapes and element types."""
    made = []
    for array in arrays:
        noise = rng.standard_normal(array.shape)
        if np.iscomplexobj(array):
            noise = noise + 1j * rng.standard_normal(array.shape)
        made.append(np.asarray(noise, array.dtype))
    return made


def difference(
    fn: Callable[..., Sequence[Array]],
    point: Sequence[Array],
    direction: Sequence[Array],
    step: float,
) -> list[Array]:
    """(f(x + hv) − f(x − hv)) / 2h."""
    ahead = fn(*(x + step * v for x, v in zip(point, direction, strict=True)))
    behind = fn(*(x - step * v for x, v in zip(point, direction, strict=True)))
    return [(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)]


def dot_test(
    fn: Callable[..., Sequence[Array]],
    vjp: Callable[..., Sequence[Array]],
    point: Sequence[Array],
    *,
    seed: int = 0,
    step: float = 1e-5,
) -> float:
    """The relative disagreement of `fn` and `vjp` at `point`.

    `fn(*point)` gives results, `vjp(*point, *cotangents)` one cotangent for each
    of `point`. A right float64 rule gives about 1e-9; half of one in a thousand
    is 5e-4.
    """
    rng = np.random.default_rng(seed)
    direction = random_like(point, rng)
    tangents = difference(fn, point, direction, step)
    cotangents = random_like(tangents, rng)
    left = pairing(cotangents, tangents)
    right = pairing(vjp(*point, *cotangents), direction)
    return abs(left - right) / max(abs(left), abs(right), 1e-300)
