"""Points for dot tests: a program, where to differentiate it, how exact it is.

Arguments that count are real: complex numbers are made of two inside and taken apart
at the end, since the interpreter's results are real. Entries lie in [0.3, 0.9], no
two nearer than 1e-3, so that no kink and no tie is near.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from helpers.oracles.jax_gradients import Case, is_float, lowered

Array = np.ndarray
Rng = np.random.Generator


@dataclass(frozen=True)
class Point:
    """A program, where to differentiate it, and how exact its dtype is.

    `step` is that of the central difference, whose error is `rough`; None where the
    op is no smooth function and only the two modes are compared. `fn` computes what
    the program does, where the interpreter does not know the op.
    """

    text: str
    arguments: list[Array]
    wrt: tuple[int, ...]
    tolerance: float = 1e-10
    step: float | None = 1e-5
    rough: float = 1e-6
    fn: Callable[..., Any] | None = None


Maker = Callable[[Rng], Point]


def spread(rng: Rng, *shape: int, low: float = 0.3, high: float = 0.9) -> Array:
    """f64 numbers, no two of them near each other."""
    size = int(np.prod(shape))
    places = rng.permutation(size) + rng.uniform(0.3, 0.7, size)
    return low + (high - low) * (places / max(size, 1)).reshape(shape)


def shape_of(rng: Rng, least: int = 0, most: int = 3) -> tuple[int, ...]:
    """A random shape of `least` to `most` dims of 1 to 3 elements."""
    return tuple(int(n) for n in rng.integers(1, 4, rng.integers(least, most + 1)))


def lowering(fn: Callable[..., Any], *arguments: Array, **more: Any) -> Point:
    """A JAX function at a point, differentiated for all its floats."""
    with jax.enable_x64(True):
        case = Case("", fn, arguments, platform=more.pop("platform", None))
        text = lowered(case)
    wrt = tuple(i for i, x in enumerate(arguments) if is_float(x))
    return Point(text, list(arguments), wrt, **more)


def type_of(shape: tuple[int, ...], element: str) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}{element}>"
