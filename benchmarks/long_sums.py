"""How far long sums are from those in f64, by pcp on CPUs and by JAX.

    python benchmarks/long_sums.py
    python benchmarks/long_sums.py --only 'scatter|running' --terms 24 --targets cpu

A row is a sum of 2^terms numbers of f32 between 0 and 1: the largest error over the
largest result, and the least time of three calls.
"""

import argparse
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import pcp

Case = tuple[Callable[..., Any], Callable[[int], Sequence[tuple[int, ...]]]]


def _one_row(x: Any) -> Any:
    return jnp.zeros((4,), x.dtype).at[jnp.ones(x.shape, jnp.int32)].add(x)


def _two_at_once(x: Any) -> Any:
    def both(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, Any]:
        return a[0] + b[0], a[1] + b[1]

    zero = x.dtype.type(0)
    return lax.reduce((x, x * x), (zero, zero), both, (0,))


def _moving(x: Any) -> Any:
    half = x.shape[0] // 2
    return lax.reduce_window(x, x.dtype.type(0), lax.add, (half,), (half - 1,), "VALID")


def _kernel(x: Any) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")
    x = x.reshape(1, 256, -1, 1)

    def loss(kernel: Any) -> Any:
        made = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", None, None, dims)
        return (made**2).sum()

    return jax.grad(loss)(jnp.ones((3, 3, 1, 1), x.dtype))


CASES: dict[str, Case] = {
    "sum": (jnp.sum, lambda n: [(n,)]),
    "rows": (lambda x: x.sum(1), lambda n: [(4, n)]),
    "log of exponentials": (jax.nn.logsumexp, lambda n: [(n,)]),
    "variance": (jnp.var, lambda n: [(n,)]),
    "product of vectors": (jnp.dot, lambda n: [(n,), (n,)]),
    "product": (jnp.dot, lambda n: [(16, n), (n, 16)]),
    "product with rows": (lambda x, y: x @ y.T, lambda n: [(16, n), (16, n)]),
    "weight's gradient": (lambda x, y: x.T @ y, lambda n: [(n, 17), (n, 3)]),
    "kernel's gradient": (_kernel, lambda n: [(n,)]),
    "running": (jnp.cumsum, lambda n: [(n,)]),
    "moving window": (_moving, lambda n: [(n,)]),
    "scatter into one row": (_one_row, lambda n: [(n,)]),
    "two sums at once": (_two_at_once, lambda n: [(n,)]),
}


def _error(found: Any, wanted: Any) -> float:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return max(
        float(np.abs(np.asarray(a, np.float64) - b).max() / np.abs(b).max())
        for a, b in pairs
    )


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    found, least = call(), float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        found = call()
        least = min(least, time.perf_counter() - begun)
    return found, least * 1e3


def _wanted(of: Callable[..., Any], given: Sequence[np.ndarray]) -> Any:
    with jax.enable_x64(True):
        found = jax.jit(of)(*(jnp.asarray(x, jnp.float64) for x in given))
        return jax.tree.map(np.asarray, found)


def _by_pcp(of: Callable[..., Any], given: Sequence[np.ndarray], target: str) -> Any:
    module = pcp.from_jax(of, *given, params=())
    bundle = pcp.compile(module, mode="forward", targets=target)
    with pcp.Program.load(bundle, device="local-sync") as program:
        found, ms = _timed(lambda: program["main"](*given))
        parts = found if isinstance(found, list | tuple) else [found]
        return [np.array(part) for part in parts], ms


def row(name: str, terms: int, targets: Sequence[str]) -> str:
    """Errors and milliseconds of JAX, then of each target."""
    of, shapes = CASES[name]
    draw = np.random.default_rng(0)
    given = [draw.random(shape, np.float32) for shape in shapes(2**terms)]
    wanted, compiled = _wanted(of, given), jax.jit(of)
    found = {"jax": _timed(lambda: jax.block_until_ready(compiled(*given)))}
    found |= {target: _by_pcp(of, given, target) for target in targets}
    parts = [f"{k} {_error(v, wanted):.1e} {ms:.2f} ms" for k, (v, ms) in found.items()]
    return f"{name:22} 2^{terms}  " + "  ".join(parts)


def main() -> None:
    """Print a row a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression")
    parser.add_argument("--terms", type=int, default=20, help="their logarithm")
    parser.add_argument("--targets", default="cpu,cpu:host")
    options = parser.parse_args()
    for name in CASES:
        if re.search(options.only, name):
            print(row(name, options.terms, options.targets.split(",")), flush=True)


if __name__ == "__main__":
    main()
