"""pcp-split-reductions: long sums are as near to f64's as those of JAX's users are."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree
from jax import lax

import pcp
from pcp.dialect.context import parse
from pcp.passes.core.rewriting import operations
from pcp.passes.simplify.split_reductions import SplitReductions

Drawn = tuple[Callable[..., Any], list[list[int]]]

LARGE = np.random.default_rng(0).random((1024, 1024), np.float32)

SUMS: dict[str, Callable[[Any], Any]] = {
    "of all squares": lambda x: (x * x).sum(),
    "of rows": lambda x: (x.reshape(32, -1)[:, :20011] * 3).sum(1),
    "of columns": lambda x: x.reshape(-1, 16).sum(0),
    "around a dim": lambda x: x.reshape(512, 4, 512).sum((0, 2)),
    "of a mean": lambda x: jnp.mean((x - 0.5) ** 2),
    "in a slope": lambda x: jax.grad(lambda b: ((x + b) ** 2).sum())(0.25),
    "of products": lambda x: x.reshape(2, -1)[:, :300007] @ x.reshape(-1, 2)[:300007],
    "running": lambda x: jnp.cumsum(x.reshape(4, -1), 1),
}

#: Of these a program is compiled in the slow tests alone.
MORE: dict[str, Callable[[Any], Any]] = {
    "of products with rows": lambda x: x.reshape(16, -1) @ x.reshape(16, -1).T,
    "from one": lambda x: lax.reduce(x, x.dtype.type(1), lax.add, (0, 1)),
    "of a kernel": lambda x: _kernels_gradient(x.reshape(4, 512, 512, 1)),
}


def _kernels_gradient(x: Any) -> Any:
    dims = ("NHWC", "HWIO", "NHWC")
    ones = jnp.ones((2, 2, 1, 1), x.dtype)
    with_ = partial(
        lax.conv_general_dilated,
        *(x,),
        window_strides=(1, 1),
        padding="VALID",
        dimension_numbers=dims,
    )
    return jax.grad(lambda kernel: (with_(kernel) ** 2).sum())(ones)


@cache
def _compiled(few: bool = True) -> dict[str, np.ndarray]:
    """All sums of one program, for the default target."""
    sums = SUMS if few else MORE

    def every(x: Any) -> Any:
        return [of(x) for of in sums.values()]

    bundle = pcp.compile(pcp.from_jax(every, LARGE, params=()), mode="forward")
    with pcp.Program.load(bundle, device="local-sync") as program:
        found = [np.array(v) for v in program["main"](LARGE)]
    return dict(zip(sums, found, strict=True))


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_is_near_that_in_double(name: str) -> None:
    """One after the other, a million terms were 4e-4 off."""
    with jax.enable_x64(True):
        wanted = np.asarray(SUMS[name](jnp.asarray(LARGE, jnp.float64)))
    assert np.abs(_compiled()[name] / wanted - 1).max() < 3e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SUMS, *MORE])
def test_a_sum_is_as_near_as_jax_has_it(name: str) -> None:
    """Within ten times of its error; a float's rounding apart."""
    of = (SUMS | MORE)[name]
    with jax.enable_x64(True):
        wanted = np.asarray(of(jnp.asarray(LARGE, jnp.float64)))
    theirs = np.abs(np.asarray(jax.jit(of)(LARGE)) / wanted - 1).max()
    found = _compiled(name in SUMS)[name]
    assert np.abs(found / wanted - 1).max() < 10 * theirs + 1e-6


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


def _letters(draw: np.random.Generator, sizes: dict[str, int]) -> tuple[str, list[int]]:
    order = "".join(draw.permutation(list(sizes)))
    return order, [sizes[letter] for letter in order]


def _product(draw: np.random.Generator) -> Drawn:
    """Up to two dims of a batch, one to three that are summed over, in any order."""
    some = {c: int(draw.integers(1, 4)) for c in "abmn"[: draw.integers(1, 5)]}
    over = {c: int(draw.choice([2, 3, 5, 8, 13, 24])) for c in "xyz"}
    over = {c: over[c] for c in "xyz"[: draw.integers(1, 4)]}
    sides = [{c: n for c, n in some.items() if c != no} | over for no in "nm"]
    (left, first), (right, second) = (_letters(draw, side) for side in sides)
    out, _ = _letters(draw, some)
    return partial(jnp.einsum, f"{left},{right}->{out}"), [first, second]


def _running(draw: np.random.Generator) -> Drawn:
    shape = [int(n) for n in draw.integers(1, 25, draw.integers(1, 3))]
    axis, back = int(draw.integers(len(shape))), bool(draw.integers(2))
    return partial(lax.cumsum, axis=axis, reverse=back), [shape]


def _windows(draw: np.random.Generator) -> Drawn:
    """Windows, steps and padding are multiples of a few elements."""
    rank = int(draw.integers(1, 3))
    step = draw.choice([1, 2, 3, 4], rank)
    sizes, strides = (tuple(step * draw.integers(1, n, rank)) for n in (5, 4))
    pads = [
        (int(n * a), int(n * b))
        for n, (a, b) in zip(step, draw.integers(0, 3, (rank, 2)), strict=True)
    ]
    shape = [int(n + draw.integers(0, 12)) for n in sizes]
    return lambda x: lax.reduce_window(x, 0.0, lax.add, sizes, strides, pads), [shape]


def _convolution(draw: np.random.Generator) -> Drawn:
    """A kernel that is almost as large as what it moves over, as of a gradient."""
    rank = int(draw.integers(1, 3))
    ours, theirs = [(1, 1), (1, 1), (2, 1), (1, 3)][draw.integers(4)]
    letters = "HW"[:rank]
    sizes, spread = draw.integers(6, 10, rank), draw.integers(1, 3, (3, rank))
    moved = (sizes - 1) * spread[2] + 1 + draw.integers(0, 3, rank)
    given = dict(zip(letters, -(-(moved - 1) // spread[1]) + 1, strict=True))
    kernel = dict(zip(letters, sizes, strict=True))
    channels = int(draw.integers(1, 4))
    x, shape = _letters(draw, {"N": theirs * 2, "C": ours * channels, **given})
    many = ours * theirs * int(draw.integers(1, 3))
    w, other = _letters(draw, {"O": many, "I": channels, **kernel})
    y, _ = _letters(draw, dict.fromkeys("NC" + letters, 1))
    pads = [(int(a), int(b)) for a, b in draw.integers(-1, 2, (rank, 2))]
    how = partial(
        lax.conv_general_dilated,
        window_strides=list(map(int, spread[0])),
        padding=pads,
        lhs_dilation=list(map(int, spread[1])),
        rhs_dilation=list(map(int, spread[2])),
        dimension_numbers=(x, w, y),
        feature_group_count=ours,
        batch_group_count=theirs,
    )
    return how, [shape, other]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [_product, _running, _windows, _convolution])
def test_drawn_sums(
    kind: Callable[[np.random.Generator], Drawn], seed: int, interpreter: Interpreter
) -> None:
    """Of whole numbers, as the program says: bit for bit."""
    draw = np.random.default_rng(seed)
    of, shapes = kind(draw)
    given = [draw.integers(-4, 5, shape).astype(np.float32) for shape in shapes]
    text = jax.jit(of).lower(*given).as_text()
    chunk, longest = [(8, 12), (16, 16), (512, 20), (2, 2)][seed % 4]
    module = parse(text)
    SplitReductions(chunk=chunk, longest=longest).run(module)
    (found,) = interpreter.run(str(module), given)
    np.testing.assert_array_equal(found, jax.jit(of)(*given))
