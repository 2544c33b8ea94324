"""The shape of programs, not their ops: calls, fan-out, dead and unused values.

Control flow, linear algebra, indexing and layers in the manner of JAX's own tests of
those; each program is differentiated in both modes and, marked slow, twice.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.oracles.jax_gradients import (
    Case,
    array,
    check_jvp,
    check_vjp,
    derivative_case,
    integers,
    lowered,
    positive,
    transformed,
)
from helpers.oracles.legalized import Legalized
from helpers.servers.interpreter import Interpreter
from helpers.servers.iree_server import Iree
from jax import lax

X, W, XS = array(4), array(4, 4, low=-0.5, high=0.5), array(5, 4)
A = array(3, 3) + 4 * np.eye(3, dtype=np.float32)


@jax.jit
def _layer(w, x):
    return jnp.tanh(w @ x)


@jax.jit
def _two_results(x):
    return jnp.sin(x), jnp.cos(x)


def _fan_out(x):
    y = jnp.sin(x)
    return y * y + y * 3 + jnp.exp(y) + x * y


def _unused_result(x):
    sine, _ = _two_results(x)
    return sine * x


def _returned_argument(x, y):
    return x, x * y, y, x


def _masked(x, i, b):
    return jnp.where(b, x * i, -x)


def _shared_constant(x):
    c = jnp.arange(4, dtype=jnp.float32)
    return (x * c).sum() + (x + c).prod() * c[2]


STRUCTURE = [
    Case("repeated_calls", lambda w, x: _layer(w, _layer(w, _layer(w, x))), (W, X)),
    Case("call_with_one_value_twice", lambda w: _layer(w, w), (W,)),
    Case("two_results", lambda x: _two_results(jnp.exp(x)), (X,)),
    Case("unused_result", _unused_result, (X,)),
    Case("fan_out", _fan_out, (X,)),
    Case("dead_code", lambda x: (jnp.log(-x * x), x * 2)[1], (X,)),
    Case("returned_arguments", _returned_argument, (X, X + 1)),
    Case("unused_argument", lambda x, y: jnp.sin(x), (X, X)),
    Case("integer_results", lambda x: (jnp.argmax(x), x.max(), x.astype(int)), (X,)),
    Case("integer_arguments", _masked, (X, integers(4), integers(4) > 1)),
    Case("one_of_many", lambda a, b, c: a * b + b * c * a, (X, X, X), wrt=(1,)),
    Case("order_of_wrt", lambda a, b, c: a * b / c, (X, X, positive(4)), wrt=(2, 0)),
    Case("shared_constant", _shared_constant, (X,)),
    Case("constant_result", lambda x: jnp.ones(3), (X,)),
    Case("empty", lambda x, w: x @ w, (array(0, 4), W)),
]


def _scan(f, **options):
    return lambda c, xs: lax.scan(f, c, xs, **options)


def _fibonacci(carry, x):
    a, b = carry
    return (b, jnp.sin(a * x) + b), a


def _indexed_loop(x):
    def body(i, y):
        return y.at[i].set(y[i - 1] * jnp.cos(x[i]))

    return lax.fori_loop(1, 4, body, x)


def _loop_of_branches(x):
    def body(c, v):
        c = lax.cond(v > 0, lambda u: jnp.sin(u) * v, lambda u: u - v * v, c)
        return c, c

    return lax.scan(body, jnp.float32(0.3), x)


def _switch(i, x):
    branches = (jnp.sin, lambda u: u * u, lambda u: jnp.zeros_like(u))
    return lax.switch(i, branches, x)


def _capture(p, x, y):
    return lax.cond(p, lambda: jnp.sin(x) * y, lambda: x)


def _associative(x):
    def combine(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    return lax.associative_scan(combine, (x, jnp.cos(x)))


CONTROL_FLOW = [
    Case("scan_pairs", _scan(_fibonacci), ((X, X + 1), XS)),
    Case("scan_reverse", _scan(_fibonacci, reverse=True), ((X, X + 1), XS)),
    Case("scan_unrolled", _scan(_fibonacci, unroll=2), ((X, X + 1), XS)),
    Case("scan_of_nothing", _scan(_fibonacci), ((X, X + 1), array(0, 4))),
    Case("scan_of_one", _scan(_fibonacci), ((X, X + 1), array(1, 4))),
    Case("scan_without_input", lambda c: lax.scan(
        lambda c, _: (jnp.sin(c), c), c, None, length=4), (X,)),
    Case("loop_over_indices", _indexed_loop, (X,)),
    Case("loop_of_branches", _loop_of_branches, (XS[:, 0],)),
    *(Case(f"switch_{i}", _switch, (np.int32(i), X)) for i in (-1, 0, 1, 2, 7)),
    *(
        Case(f"captures_{p}", _capture, (np.bool_(p), X, X + 1))
        for p in (False, True)
    ),
    Case(
        "branch_of_constants",
        lambda p, x: lax.cond(p > 2, lambda u: 1.0, lambda u: u * u, x),
        (np.float32(1.0), np.float32(3.0)),
    ),
    Case("associative_scan", _associative, (array(7),)),
    Case("vmap_of_cond", jax.vmap(
        lambda v: lax.cond(v > 0, jnp.sin, lambda u: u**3, v)), (X,)),
    Case("vmap_of_scan", jax.vmap(_scan(_fibonacci), in_axes=(None, 1)),
         ((X[0], X[1]), XS)),
    Case("map", lambda xs: lax.map(lambda r: jnp.tanh(W @ r), xs), (XS,)),
]  # fmt: skip

#: The arguments above are trees; a case has arrays.
CONTROL_FLOW = [
    Case(
        c.name,
        lambda *leaves, c=c: c.fn(
            *jax.tree.unflatten(jax.tree.structure(c.args), leaves)
        ),
        tuple(jax.tree.leaves(c.args)),
    )
    for c in CONTROL_FLOW
]


def _newton_inverse(a):
    x = a.T / (jnp.abs(a).sum(0).max() * jnp.abs(a).sum(1).max())
    return lax.fori_loop(0, 6, lambda _, x: x @ (2 * jnp.eye(3) - a @ x), x)


def _solve(a, b):
    lower = jnp.tril(a)
    return lax.linalg.triangular_solve(lower, b, left_side=True, lower=True)


def _spectrum(x):
    return jnp.abs(jnp.fft.fft(x)[:, 1:]) ** 2


LINEAR_ALGEBRA = [
    Case("inverse_by_newton", _newton_inverse, (A,)),
    Case("triangular_solve", _solve, (A, array(3, 2)), platform="tpu"),
    Case("trace_of_powers", lambda a: jnp.trace(a @ a @ a), (A,)),
    Case("norms", lambda a: (jnp.linalg.norm(a), jnp.linalg.norm(a, axis=0)), (A,)),
    Case("einsum", lambda a, b: jnp.einsum("bij,bkj,k->bi", a, a, b),
         (array(2, 3, 4), array(3))),
    Case("einsum_diagonal", lambda a: jnp.einsum("ii->i", a), (A,)),
    Case("outer_and_kron", lambda a, b: jnp.kron(a, jnp.outer(b, b)), (A, X)),
    Case("tensordot", lambda a, b: jnp.tensordot(a, b, ((1, 2), (2, 0))),
         (array(2, 3, 4), array(4, 5, 3))),
    Case("cross", jnp.cross, (array(2, 3), array(2, 3, seed=1))),
    Case("convolve", lambda x, h: jnp.convolve(x, h, "same"), (array(9), array(3))),
]  # fmt: skip

#: Run by IREE: the interpreter aborts on every fft.
FOURIER = [
    Case("spectrum", _spectrum, (array(3, 8),)),
    Case("fft2", lambda x: jnp.abs(jnp.fft.fft2(x)) ** 2, (array(2, 4, 8),)),
]

ROWS = np.array([0, -1, 2, 0])


def _attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 2.0
    mask = jnp.tril(jnp.ones((3, 3), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def _layer_norm(x, g, b):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(var + 1e-5) * g + b


def _cross_entropy(logits, labels):
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
    return -picked.mean()


INDEXING_AND_LAYERS = [
    Case("index_ellipsis", lambda x: x[..., None, 1], (XS,)),
    Case("index_negative_step", lambda x: x[::-2, 1:3], (XS,)),
    Case("index_array", lambda x: x[ROWS], (XS,)),
    Case("index_two_arrays", lambda x: x[ROWS, ROWS], (XS,)),
    Case("index_array_and_slice", lambda x: x[ROWS, :, ROWS], (array(5, 2, 4),)),
    Case("index_mask", lambda x: x[np.array([True, False, True, False])], (X,)),
    Case("index_traced", lambda x, i: x.at[i, i + 1].get(mode="clip"),
         (XS, integers(3, low=-2))),
    Case("index_out_of_bounds", lambda x, i: x.at[i].get(mode="clip"),
         (X, np.array([9, -9, 1]))),
    Case("set_rows", lambda x, y: x.at[ROWS[1:]].set(y), (XS, array(3, 4))),
    Case("add_rows", lambda x, y: x.at[ROWS].add(y), (XS, array(4, 4))),
    Case("multiply_rows",
         lambda x, y: x.at[ROWS[1:]].multiply(y, unique_indices=True),
         (XS, array(3, 4))),
    Case("maximum_rows", lambda x, y: x.at[ROWS[1:]].max(y), (XS, array(3, 4, seed=9))),
    Case("take_with_fill", lambda x: jnp.take(x, ROWS + 3, mode="fill",
         fill_value=0.0, axis=0), (XS,)),
    Case("segment_sum", lambda x: jax.ops.segment_sum(x, ROWS[[0, 2, 0, 2, 3]], 3),
         (XS,)),
    Case("roll_and_diff", lambda x: jnp.diff(jnp.roll(x, 2, 0), axis=1), (XS,)),
    Case("repeat_and_tile", lambda x: jnp.tile(jnp.repeat(x, 2), 3), (X,)),
    Case("median", lambda x: jnp.median(x, axis=0), (XS,)),
    Case("quantile", lambda x: jnp.quantile(x, 0.3, axis=0), (XS,)),
    Case("standard_deviation", lambda x: x.std(0, ddof=1), (XS,)),
    Case("attention", _attention, tuple(array(2, 3, 2, 4, seed=s) for s in range(3))),
    Case("layer_norm", _layer_norm, (XS, X, X)),
    Case("cross_entropy", _cross_entropy, (XS, integers(5))),
    Case("softmax", jax.nn.softmax, (XS,)),
    Case("gelu", lambda x: jax.nn.gelu(x, approximate=False), (X,)),
    Case("gelu_tanh", jax.nn.gelu, (X,)),
    Case("softplus", jax.nn.softplus, (X,)),
    Case("elu", jax.nn.elu, (X,)),
    Case("selu", jax.nn.selu, (X,)),
    Case("silu", jax.nn.silu, (X,)),
    Case("log_sigmoid", jax.nn.log_sigmoid, (X,)),
    Case("relu6", jax.nn.relu6, (3 * XS,)),
    Case("glu", jax.nn.glu, (XS,)),
    Case("squareplus", jax.nn.squareplus, (X,)),
    Case("standardize", jax.nn.standardize, (XS,)),
    Case("one_hot", lambda x: jax.nn.one_hot(ROWS, 4) @ x, (W,)),
    Case("avg_pool", lambda x: lax.reduce_window(
        x, 0.0, lax.add, (2, 2), (1, 2), "SAME") / 4, (array(4, 6),)),
]  # fmt: skip

CASES = [*STRUCTURE, *CONTROL_FLOW, *LINEAR_ALGEBRA, *INDEXING_AND_LAYERS]

#: A few of each by default.
QUICK = CASES[::4]

#: Why the second derivative is not compared.
FIRST_ORDER_ONLY = {
    "constant_result": "the first derivative is zero for every input",
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.name, marks=[] if c in QUICK else [pytest.mark.slow])
     for c in CASES],
)  # fmt: skip
def test_both_modes(case: Case, interpreter: Interpreter) -> None:
    check_vjp(case, interpreter)
    check_jvp(case, interpreter)


@pytest.mark.slow  # test_programs.py has a transform
@pytest.mark.parametrize("case", FOURIER, ids=str)
def test_fourier(case: Case, iree: Iree) -> None:
    check_vjp(case, Legalized(iree))
    check_jvp(case, Legalized(iree))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.name not in FIRST_ORDER_ONLY], ids=str
)
def test_order_two(case: Case, interpreter: Interpreter) -> None:
    check_vjp(derivative_case(case), interpreter)


def test_repeated_calls_grow_by_the_callee_each() -> None:
    """Eight calls of a layer cost about twice what four do, not the square."""

    def ops(depth: int) -> int:
        def net(w, x):
            for _ in range(depth):
                x = _layer(w, x)
            return x

        text = lowered(Case("net", net, (W, X)))
        return transformed(text, "pcp-vjp").count(" = stablehlo.")

    four, eight = ops(4), ops(8)
    assert four < eight <= 2.2 * four


def test_relu_at_zero_is_the_documented_difference(interpreter: Interpreter) -> None:
    """jax.nn.relu has slope 0 at 0 by a custom_jvp, which its text does not carry.

    What the text says is max(x, 0), whose tie is shared: ½.
    """
    zero = np.float32(0.0)
    assert jax.grad(jax.nn.relu)(zero) == 0.0
    text = lowered(Case("relu", jax.nn.relu, (zero,)))
    *_, slope = interpreter.run(transformed(text, "pcp-vjp"), [zero, np.float32(1.0)])
    assert slope == 0.5


def test_an_index_outside_is_the_documented_difference(
    interpreter: Interpreter,
) -> None:
    """jnp's default indexing reads the clamped element but drops its cotangent.

    The text holds a gather that clamps, and its derivative goes where it read.
    """
    x, i, g = X, np.array([9], np.int32), np.ones(1, np.float32)
    assert jax.grad(lambda x: x[i].sum())(x)[-1] == 0.0
    text = lowered(Case("index", lambda x, i: x[i], (x, i)))
    *_, ours = interpreter.run(transformed(text, "pcp-vjp{wrt=0}"), [x, i, g])
    np.testing.assert_array_equal(ours, [0, 0, 0, 1])
