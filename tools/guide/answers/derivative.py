"""Chapter 7: write a derivative rule.

`pcp guide check 7` runs your functions and holds them against differences. A rule
gets `g`, the cotangent of the op's result (the derivative of the loss by it), and
gives the cotangents of the operands.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def tanh_vjp(g: Array, x: Array, y: Array) -> Array:
    """The cotangent of x for y = tanh(x). Use y: it has been computed already."""
    # (answer
    return g * (1 - y * y)
    # answer)


def matmul_vjp(g: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """The cotangents of a [M, K] and b [K, N] for y = a @ b, where g is [M, N].

    Only one product of the shapes fits each of them.
    """
    # (answer
    return g @ b.T, a.T @ g
    # answer)


def broadcast_vjp(g: Array) -> Array:
    """The cotangent of b [N] for y[i, j] = b[j], where g is [M, N].

    A value that was used M times gets M contributions.
    """
    # (answer
    return g.sum(axis=0)
    # answer)
