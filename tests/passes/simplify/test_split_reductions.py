"""pcp-split-reductions: long sums are as near to f64's as those of JAX's users are."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree

import pcp
from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations
from pcp.passes.simplify.split_reductions import SplitReductions

LARGE = np.random.default_rng(0).random((1024, 1024), np.float32)

SUMS: dict[str, Callable[[Any], Any]] = {
    "of all squares": lambda x: (x * x).sum(),
    "of rows": lambda x: (x.reshape(32, -1)[:, :20011] * 3).sum(1),
    "of columns": lambda x: x.reshape(-1, 16).sum(0),
    "around a dim": lambda x: x.reshape(512, 4, 512).sum((0, 2)),
    "of a mean": lambda x: jnp.mean((x - 0.5) ** 2),
    "in a slope": lambda x: jax.grad(lambda b: ((x + b) ** 2).sum())(0.25),
}


@cache
def _compiled() -> dict[str, np.ndarray]:
    """All sums of one program, for the default target."""

    def every(x: Any) -> Any:
        return [of(x) for of in SUMS.values()]

    bundle = pcp.compile(pcp.from_jax(every, LARGE, params=()), mode="forward")
    with pcp.Program.load(bundle, device="local-sync") as program:
        found = [np.array(v) for v in program["main"](LARGE)]
    return dict(zip(SUMS, found, strict=True))


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_near_that_in_double(name: str) -> None:
    """One after the other, a million terms were 4e-4 off."""
    with jax.enable_x64(True):
        wanted = np.asarray(SUMS[name](jnp.asarray(LARGE, jnp.float64)))
    assert np.abs(_compiled()[name] / wanted - 1).max() < 3e-6


@pytest.mark.slow
def test_iree_adds_one_after_the_other(iree: Iree) -> None:
    """What the pass is for: a mean of 2^24 squares is 2 to 3 % too small else."""
    draw = np.random.default_rng(0)
    x, y = (draw.standard_normal((2048, 8192), np.float32) for _ in range(2))
    text = jax.jit(lambda x, y: jnp.mean((x - y) ** 2)).lower(x, y).as_text()
    wanted = ((x.astype(np.float64) - y) ** 2).mean()
    (found,) = iree.run(text, [x, y])
    assert -0.03 < found / wanted - 1 < -0.02
    module = parse(text)
    SplitReductions().run(module)
    (found,) = iree.run(str(module), [x, y])
    assert abs(found / wanted - 1) < 1e-6


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((60,), [0]),
        ((61,), [0]),
        ((3, 23), [0, 1]),
        ((23, 3), [1, 0]),
        ((5, 2, 7), [0, 2]),
        ((31, 2, 29), [2]),
        ((2, 64, 3), [1]),
        ((7, 1, 11, 1), [0, 1, 2, 3]),
        ((37, 41), [0, 1]),
    ],
)
@pytest.mark.parametrize(("chunk", "longest"), [(8, 12), (16, 16), (512, 20), (2, 2)])
def test_the_same_terms(
    shape: tuple[int, ...],
    dims: list[int],
    chunk: int,
    longest: int,
    interpreter: Interpreter,
) -> None:
    """Whole numbers come out exactly; no sum is longer than it may be."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    kept = [n for d, n in enumerate(shape) if d not in dims]
    given, made = (f"tensor<{'x'.join(map(str, [*s, 'f32']))}>" for s in (shape, kept))
    module = parse(f"""
      func.func @main(%x: {given}) -> {made} {{
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add
          across dimensions = {dims} : ({given}, tensor<f32>) -> {made}
        return %0 : {made}
      }}
    """)
    SplitReductions(chunk=chunk, longest=longest).run(module)
    (found,) = interpreter.run(str(module), [x])
    np.testing.assert_array_equal(found, x.sum(tuple(dims)))
    for op in operations(module):
        if op.name == "stablehlo.reduce":
            length = np.prod(op.operands[0].type.shape) / np.prod(op.result.type.shape)
            assert length <= longest
