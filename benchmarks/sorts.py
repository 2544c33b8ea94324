"""What sorting takes by pcp on CPUs and by JAX, and whether both give the same.

    python benchmarks/sorts.py
    python benchmarks/sorts.py --only 'median|rows' --count 1000000 --targets cpu

A row is a function of `count` numbers of f32: the least processor time of five calls of
JAX, then of each target with its ratio to JAX's, and `differs` where a number does.
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


def _rows(of: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: of(x[: len(x) // 100 * 100].reshape(100, -1), axis=1)


def _with_payload(x: Any) -> Any:
    return lax.sort((jnp.round(x), -x, 2 * x), num_keys=2, is_stable=True)


CASES: dict[str, Callable[..., Any]] = {
    "sort": jnp.sort,
    "argsort": jnp.argsort,
    "sort of 100 rows": _rows(jnp.sort),
    "by two keys": _with_payload,
    "median": jnp.median,
    "top_k of 50": lambda x: lax.top_k(x, 50),
    "top_k of 1000": lambda x: lax.top_k(x, 1000),
    "gradient": jax.grad(lambda x: (jnp.sort(x) * jnp.arange(len(x))).sum()),
}


def _timed(call: Callable[[], Any]) -> tuple[list[np.ndarray], float]:
    found, least = call(), float("inf")
    for _ in range(5):
        begun = time.process_time()
        found = call()
        least = min(least, time.process_time() - begun)
    return [np.array(each) for each in jax.tree.leaves(found)], least * 1e3


def _by_pcp(of: Callable[..., Any], x: np.ndarray, target: str) -> Any:
    module = pcp.from_jax(of, x, params=())
    bundle = pcp.compile(module, mode="forward", targets=target)
    with pcp.Program.load(bundle, device="local-sync") as program:
        return _timed(lambda: program["main"](x))


def row(name: str, count: int, targets: Sequence[str]) -> str:
    """Processor milliseconds of JAX, then of each target."""
    x = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    compiled = jax.jit(CASES[name])
    want, theirs = _timed(lambda: jax.block_until_ready(compiled(x)))
    parts = [f"jax {theirs:.2f} ms"]
    for target in targets:
        found, ms = _by_pcp(CASES[name], x, target)
        same = all(map(np.array_equal, found, want))
        parts.append(
            f"{target} {ms:.2f} ms, {ms / theirs:.1f}{'' if same else ' differs'}"
        )
    return f"{name:18} {count}  " + "  ".join(parts)


def main() -> None:
    """Print a row a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression")
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--targets", default="cpu,cpu:host")
    options = parser.parse_args()
    for name in CASES:
        if re.search(options.only, name):
            print(row(name, options.count, options.targets.split(",")), flush=True)


if __name__ == "__main__":
    main()
