"""Derivative cases of loops whose length is found by running them.

JAX has no reverse of these: the reference is the same loop written out, or run a
fixed number of times with the iterations behind the last one masked.
"""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from helpers.cases.control_flow import cond_in_scan, nested_scan, rnn
from helpers.oracles.jax_gradients import Case, array
from jax import lax

X = array(4)


def masked(go_on, body, most):
    """`while go_on(s): s = body(s)`, as `most` iterations that jax can reverse."""

    def run(state):
        def step(_, s):
            after = body(s)
            keep = go_on(s)
            return jax.tree.map(lambda a, b: jnp.where(keep, a, b), after, s)

        return lax.fori_loop(0, most, step, state)

    return run


def with_attribute(text, attribute):
    """The text with an attribute on each of its `while` ops."""
    return re.sub(r"(?m)^( +)cond \{", rf"\1attributes {{{attribute}}} cond {{", text)


def known(fn, *args):
    """The text of a function."""
    return jax.jit(fn, keep_unused=True).lower(*args).as_text()


def unknown(name, make, args, most, attribute="", **more):
    """A case of `make(loop)`, where `loop(go_on, body, state)` runs a loop."""

    def fn(*a):
        return make(lax.while_loop, *a)

    def reference(*a):
        return make(lambda go_on, body, s: masked(go_on, body, most)(s), *a)

    text = jax.jit(fn, keep_unused=True).lower(*args).as_text()
    if attribute:
        text = with_attribute(text, attribute)
        assert attribute in text
    return Case(name, reference, args, text=text, **more)


def _counting(loop, n, x):
    """n iterations that use their number, and a value from outside."""
    return loop(
        lambda s: s[0] < n,
        lambda s: (s[0] + 1, jnp.sin(s[1]) * 1.1 + 0.1 * x * s[0]),
        (jnp.int32(0), x),
    )[1]


def _newton(loop, a):
    """The square root by Newton's iteration."""
    return loop(
        lambda s: jnp.abs(s * s - a) > 1e-3, lambda s: 0.5 * (s + a / s), a + 1.0
    )


def _ode(loop, w, y):
    """y' = tanh(w y) to t = 1 with steps that depend on y, as a pair of carries."""

    def step(s):
        t, y = s
        f = jnp.tanh(w @ y)
        h = jnp.minimum(0.2 / (1 + jnp.sum(f * f)), 1.0 - t)
        return t + h, y + h * f

    return loop(lambda s: s[0] < 1.0, step, (jnp.float32(0), y))[1]


def _outputs(loop, n, x):
    """A carry that no other depends on gathers one entry an iteration."""

    def step(s):
        i, y, ys = s
        y = y * jnp.cos(x)
        return i + 1, y, ys.at[i].set(y.sum())

    return loop(lambda s: s[0] < n, step, (jnp.int32(0), x, jnp.zeros(12)))[1:]


def _nested(loop, n, x):
    def outer(s):
        i, y = s
        y = loop(
            lambda s: s[0] <= i,
            lambda s: (s[0] + 1, jnp.sin(s[1]) + x),
            (jnp.int32(0), y),
        )[1]
        return i + 1, y

    return loop(lambda s: s[0] < n, outer, (jnp.int32(0), x))[1]


def _fixed_inside(loop, n, x):
    def outer(s):
        i, y = s
        return i + 1, lax.fori_loop(0, 3, lambda j, z: jnp.sin(z) * x, y)

    return loop(lambda s: s[0] < n, outer, (jnp.int32(0), x))[1]


def _branch_inside(loop, n, x):
    def outer(s):
        i, y = s
        return i + 1, lax.cond(i % 2 == 0, jnp.sin, lambda z: z * x, y)

    return loop(lambda s: s[0] < n, outer, (jnp.int32(0), x))[1]


def _swapped(loop, n, x, y):
    return loop(
        lambda s: s[0] < n,
        lambda s: (s[0] + 1, s[2], jnp.sin(s[1]) + s[2], s[3]),
        (jnp.int32(0), x, y, x),
    )[1:]


def _inside_branch(loop, n, x):
    return lax.cond(n > 2, lambda: _counting(loop, n, x), lambda: x * 2)


COUNTS = (0, 1, 2, 5, 9, 17)
UNKNOWN = [
    *(unknown(f"count_{n}", _counting, (np.int32(n), X), 17) for n in COUNTS),
    *(
        unknown(f"two_slots_{n}", _counting, (np.int32(n), X), 17, "pcp.checkpoint = 2")
        for n in COUNTS
    ),
    *(
        unknown(
            f"at_most_{m}", _counting, (np.int32(5), X), 17, f"pcp.max_trip_count = {m}"
        )
        for m in (1, 2, 3, 5, 8)
    ),
    unknown("newton", _newton, (np.float32(2.0),), 12),
    unknown("ode", _ode, (array(4, 4, low=-0.5, high=0.5), X), 12),
    unknown("outputs", _outputs, (np.int32(5), X), 6),
    unknown("nested_unknown", _nested, (np.int32(3), X), 5),
    unknown("fixed_inside", _fixed_inside, (np.int32(3), X), 4),
    unknown("branch_inside", _branch_inside, (np.int32(4), X), 5),
    unknown("swapped", _swapped, (np.int32(5), X, X + 1), 6),
    unknown("inside_branch", _inside_branch, (np.int32(4), X), 5),
]


def _long(n):
    def fn(x):
        return lax.fori_loop(0, n, lambda i, y: jnp.sin(y) * 1.1 + 0.1 * x * i, x)

    return fn


def _indexed(n, start):
    """The body indexes what it reads and writes by the number of the iteration."""

    def fn(x, w):
        def body(i, y):
            return y.at[i + 1].set(jnp.tanh(y[i] * w[i]))

        return lax.fori_loop(start, n, body, x)

    return fn


def _integers(x, i):
    return lax.scan(lambda c, j: ((c[0] * x[c[1]], (c[1] + j) % 4), c[0]), (x, 0), i)


def _downwards(x):
    return lax.while_loop(
        lambda s: s[0] > -4, lambda s: (s[0] - 3, s[1] * jnp.cos(x * s[0])), (12, x)
    )[1]


def _downwards_reference(x):
    y = x
    for i in range(12, -4, -3):
        y = y * jnp.cos(x * i)
    return y


#: Each is tried with several lengths of segments.
SEGMENTED = [
    *(Case(f"length_{n}", _long(n), (X,)) for n in (1, 2, 9, 10)),
    Case("indexed", _indexed(7, 0), (array(8), array(8))),
    Case("indexed_from_two", _indexed(7, 2), (array(8), array(8))),
    Case(
        "scan",
        partial(rnn, reverse=True),
        (array(4, 4, low=-0.5, high=0.5), array(7, 4), X),
    ),
    Case("scan_in_scan", nested_scan, (np.float32(0.7), array(5, 4))),
    Case("branch_in_scan", cond_in_scan, (X, array(5, 4))),
    Case("integers", _integers, (X, np.arange(6, dtype=np.int32))),
    Case("downwards", _downwards_reference, (X,), text=known(_downwards, X)),
]
