"""Derivative cases of loops, branches, calls."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers.oracles.jax_gradients import Case, array, integers
from jax import lax

X, W = array(4), array(4, 4, low=-0.5, high=0.5)
XS = array(5, 4)


def rnn(w, xs, h, *, reverse=False):
    """A scan whose state each step's matrix mixes."""

    def step(h, x):
        h = jnp.tanh(w @ h + x)
        return h, h * 2

    return lax.scan(step, h, xs, reverse=reverse)


def _nested(x):
    def inner(j, y):
        return jnp.sin(y) * (1.0 + j)

    def outer(i, y):
        return lax.fori_loop(0, 2, inner, y) + i * x

    return lax.fori_loop(0, 3, outer, x)


def nested_scan(w, xs):
    """A scan in each step of a scan."""

    def inner(h, x):
        return jnp.tanh(w * h + x), h

    def outer(h, row):
        h, ys = lax.scan(inner, h, row)
        return h * 1.5, ys.sum()

    return lax.scan(outer, jnp.float32(0.5), xs)


def _counting(start, stop, step):
    def fn(x):
        def body(state):
            i, y = state
            return i + step, y * jnp.cos(x * i)

        def go_on(state):
            return state[0] < stop if step > 0 else state[0] > stop

        return lax.while_loop(go_on, body, (start, x))[1]

    def reference(x):
        y = x
        for i in range(start, stop, step):
            y = y * jnp.cos(x * i)
        return y

    return fn, reference


def _counted(name, start, stop, step):
    fn, reference = _counting(start, stop, step)
    text = jax.jit(fn).lower(X).as_text()
    return Case(name, reference, (X,), text=text)


LOOPS = [
    Case("scan_rnn", rnn, (W, XS, X)),
    Case("scan_rnn_one_input", rnn, (W, XS, X), wrt=(1,)),
    Case(
        "scan_reverse",
        lambda x: lax.scan(lambda c, y: (c * y, c), X, x, reverse=True),
        (XS,),
    ),
    Case("scan_unused_output", lambda w, xs: rnn(w, xs, X)[0], (W, XS)),
    Case("scan_last_only", lambda w, xs: rnn(w, xs, X)[1][-1], (W, XS)),
    Case(
        "scan_integers",
        lambda i, x: lax.scan(lambda c, j: (c + x[j] * c, c), X[0], i),
        (integers(6), X),
    ),
    Case("fori", lambda x: lax.fori_loop(0, 4, lambda i, y: jnp.sin(y) * y, x), (X,)),
    Case(
        "fori_index",
        lambda x: lax.fori_loop(0, 4, lambda i, y: y * x[i], jnp.float32(1)),
        (X,),
    ),
    Case(
        "fori_update",
        lambda x: lax.fori_loop(1, 4, lambda i, y: y.at[i].set(y[i - 1] * y[i]), x),
        (X,),
    ),
    Case(
        "fori_linear", lambda x, w: lax.fori_loop(0, 3, lambda i, y: w @ y, x), (X, W)
    ),
    Case(
        "fori_many",
        lambda x: lax.fori_loop(
            0, 3, lambda i, s: (s[1], s[0] * s[1], s[2]), (x, x + 1, x)
        ),
        (X,),
    ),
    Case(
        "fori_swap",
        lambda x, y: lax.fori_loop(0, 3, lambda i, s: (s[1], jnp.sin(s[0])), (x, y)),
        (X, X + 1),
    ),
    Case("fori_once", lambda x: lax.fori_loop(0, 1, lambda i, y: y * y, x), (X,)),
    Case("nested", _nested, (X,)),
    Case("nested_scan", nested_scan, (np.float32(0.7), XS)),
    _counted("while_step_two", 0, 7, 2),
    _counted("while_down", 6, -1, -3),
    _counted("while_offset", 3, 8, 1),
    _counted("while_never", 5, 2, 1),
]


def _branch(i, x, y):
    return lax.switch(
        i, [lambda a, b: a * b, lambda a, b: jnp.sin(a), lambda a, b: b * 2], x, y
    )


def _if_text() -> str:
    return """
func.func @main(%p: tensor<i1>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %y = "stablehlo.if"(%p) ({
    %a = stablehlo.sine %x : tensor<4xf32>
    stablehlo.return %a : tensor<4xf32>
  }, {
    %a = stablehlo.multiply %x, %x : tensor<4xf32>
    stablehlo.return %a : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}"""


def _if(p, x):
    return jnp.where(p, jnp.sin(x), x * x)


def cond_in_scan(x, xs):
    """A scan whose steps branch."""

    def step(c, y):
        c = lax.cond(y[0] > 0, lambda: c * y, lambda: jnp.sin(c) + x)
        return c, c

    return lax.scan(step, x, xs)


def _scan_in_cond(p, x, xs):
    return lax.cond(p, lambda: rnn(W, xs, x)[0], lambda: x * 2)


BRANCHES = [
    *(Case(f"switch_{i}", _branch, (np.int32(i), X, X + 1)) for i in (0, 1, 2, 7, -1)),
    Case(
        "cond_true", lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x), (np.bool_(True), X)
    ),
    Case(
        "cond_false",
        lambda p, x: lax.cond(p, jnp.sin, jnp.cos, x),
        (np.bool_(False), X),
    ),
    Case(
        "cond_several",
        lambda p, x, y: lax.cond(p, lambda: (x, y), lambda: (y * y, x)),
        (np.bool_(True), X, X + 1),
    ),
    Case(
        "cond_one_uses",
        lambda p, x, y: lax.cond(p, lambda: x, lambda: X * 1),
        (np.bool_(False), X, X),
    ),
    Case(
        "cond_nested",
        lambda p, x: lax.cond(p, lambda: lax.cond(~p, jnp.sin, jnp.exp, x), lambda: x),
        (np.bool_(True), X),
    ),
    Case("if_true", _if, (np.bool_(True), X), text=_if_text()),
    Case("if_false", _if, (np.bool_(False), X), text=_if_text()),
    Case("cond_in_scan", cond_in_scan, (X, XS)),
    Case("scan_in_cond", _scan_in_cond, (np.bool_(True), X, XS)),
]


@jax.jit
def _helper(x, y):
    return jnp.sin(x) * y, y * y


def _calls(x, y):
    a, b = _helper(x, y)
    c, d = _helper(a, b)
    return c + _helper(d, x)[0], d


COMPOSITE_TEXT = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = stablehlo.composite "mine.twice" %x {decomposition = @body}
    : (tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
func.func private @body(%x: tensor<4xf32>) -> tensor<4xf32> {
  %a = stablehlo.sine %x : tensor<4xf32>
  %b = stablehlo.sine %a : tensor<4xf32>
  return %b : tensor<4xf32>
}"""


CALLS = [
    Case("composite", lambda x: jnp.sin(jnp.sin(x)), (X,), text=COMPOSITE_TEXT),
    Case("calls", _calls, (X, X + 1)),
    Case("calls_one_input", _calls, (X, X + 1), wrt=(1,)),
    Case(
        "call_in_loop",
        lambda x: lax.fori_loop(0, 3, lambda i, y: _helper(y, x)[0], x),
        (X,),
    ),
]
CASES = [*LOOPS, *BRANCHES, *CALLS]
