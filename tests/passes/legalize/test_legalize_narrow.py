"""pcp-legalize on bf16 and f16: IREE rounds once, as XLA does for JAX."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax

from pcp.compiler import driver
from pcp.compiler.options import CompileOptions
from pcp.dialect.context import parse
from pcp.runtime.program.executor import Program

NARROW = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Numbers in [0.25, 1): a long sum of them leaves their last place behind."""
    return np.random.default_rng(seed).uniform(0.25, 1, shape)


def windows(x: Any, size: int) -> Any:
    """The sums of windows along the last dim."""
    zero = jnp.zeros((), x.dtype)
    return lax.reduce_window(x, zero, lax.add, (1, size), (1, size), "VALID")


def sums(x: Any) -> Any:
    """A sum that JAX does not widen itself, as `jnp.sum` does."""
    return lax.reduce(x, jnp.zeros((), x.dtype), lax.add, (1,))


def depthwise(x: Any, kernel: Any) -> Any:
    """Channel by channel."""
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x, kernel, (1, 1), "VALID", dimension_numbers=numbers, feature_group_count=4
    )


#: The program, and its arguments.
CASES: dict[str, tuple[Callable[..., Any], Sequence[np.ndarray]]] = {
    "matrix": (jnp.dot, [drawn(4, 2048), drawn(2048, 8, seed=1)]),
    "vector": (jnp.dot, [drawn(4, 2048), drawn(2048, seed=1)]),
    "batched": (jnp.matmul, [drawn(2, 4, 2048), drawn(2, 2048, 4, seed=1)]),
    "transposed": (
        lambda x, y: jnp.einsum("ki,kj->ij", x, y),
        [drawn(2048, 4), drawn(2048, 8, seed=1)],
    ),
    "convolution": (
        lambda x, k: lax.conv(x, k, (1, 1), "VALID"),
        [drawn(1, 64, 5, 5), drawn(4, 64, 5, 5, seed=1)],
    ),
    "depthwise": (depthwise, [drawn(1, 24, 24, 4), drawn(23, 23, 1, 4, seed=1)]),
    "sum": (sums, [drawn(4, 2048)]),
    "windows": (lambda x: windows(x, 512), [drawn(4, 2048)]),
}


def run(make: Callable[..., Any], *arguments: np.ndarray) -> Any:
    """What a bundle of the function for the default target gives."""
    with jax.enable_x64(True):
        module = parse(jax.jit(make).lower(*arguments).as_text())
    bundle = driver.compile(module, CompileOptions(mode="forward"))
    with Program.load(bundle, device="local-sync") as program:
        return program["main"](*arguments)


@pytest.mark.slow  # test_split_reductions.py has long sums
@pytest.mark.parametrize("dtype", NARROW)
def test_a_long_sum_is_rounded_once(dtype: str) -> None:
    """To the exact sum's nearest neighbours: no digit is lost on the way."""
    given = {n: [a.astype(NARROW[dtype]) for a in x] for n, (_, x) in CASES.items()}

    def everything(*arguments: Any) -> Any:
        rest = iter(arguments)
        return tuple(f(*islice(rest, len(x))) for f, x in CASES.values())

    found = run(everything, *(a for x in given.values() for a in x))
    half = float(ml_dtypes.finfo(NARROW[dtype]).eps) / 2
    for (name, (make, _)), result in zip(CASES.items(), found, strict=True):
        with jax.enable_x64(True):
            exact = np.asarray(make(*(a.astype(np.float64) for a in given[name])))
        assert result.dtype == NARROW[dtype], name
        error = np.max(np.abs(result.astype(np.float64) / exact - 1))
        assert error < half * 1.01, name  # f32 may decide a near tie the other way


def test_counts_and_overflow() -> None:
    """A sum of ones stops at 256 in bf16 and at 2048 in f16, which ends at 65504."""
    bf16, f16 = (np.ones((1, 4096), dtype) for dtype in NARROW.values())
    large = np.repeat(np.array([[6e4, -6e4]], np.float16), 64, axis=1)
    found = run(
        lambda b, f, x: (sums(b), b @ b.T, sums(f), f @ f.T, sums(x)), bf16, f16, large
    )
    assert [float(np.squeeze(x)) for x in found] == [4096] * 4 + [0]


def test_integers_to_bfloat16() -> None:
    """On the default target, which is no particular processor."""
    generator = np.random.default_rng(0)
    arrays = [generator.integers(0, 2, 64).astype(bool)] + [
        generator.integers(np.iinfo(t).min, np.iinfo(t).max, 64, t, endpoint=True)
        for t in (np.int8, np.uint8, np.int32, np.int64)
    ]
    found = run(lambda *xs: tuple(x.astype(jnp.bfloat16) for x in xs), *arrays)
    for array, result in zip(arrays, found, strict=True):
        with jax.enable_x64(True):
            wanted = np.asarray(jnp.asarray(array).astype(jnp.bfloat16))
        assert (result == wanted).all(), array.dtype
