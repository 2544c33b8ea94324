"""JAX's generator without the loop that it has on CPUs, of the same bits.

IREE 3.13 stops at some programs with several such loops when they run ("indirect buffer
reference ... is out range of the declared binding capacity"): one for each draw whose
key is an argument and is folded before. Written out the rounds are elementwise, and are
computed where the numbers are used.
"""

from typing import Any

import numpy as np

from pcp.dialect.threefry import PARITY, ROTATIONS, ROUNDS


def rules() -> list[tuple[Any, Any]]:
    """Primitives and their lowering, as `jax_calls.lowering` takes them."""
    from jax.extend.random import threefry2x32_p
    from jax.interpreters import mlir

    return [(threefry2x32_p, mlir.lower_fun(_threefry, multiple_results=True))]


def _threefry(first: Any, second: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """See `pcp.dialect.threefry`; uint32, and shapes that are broadcast."""
    schedule = (first, second, first ^ second ^ np.uint32(PARITY))
    a, b = a + first, b + second
    for i in range(ROUNDS):
        a = a + b
        count = ROTATIONS[i % len(ROTATIONS)]
        b = a ^ ((b << np.uint32(count)) | (b >> np.uint32(32 - count)))
        if i % 4 == 3:
            number = i // 4 + 1
            a = a + schedule[number % 3]
            b = b + schedule[(number + 1) % 3] + np.uint32(number)
    return a, b
