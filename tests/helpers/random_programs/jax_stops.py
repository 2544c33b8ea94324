"""Random JAX functions with `stop_gradient` in them, wherever it can stand.

A seed decides a tree of nodes: arithmetic, and what JAX traces apart (scan, loops,
branches, vmap, checkpoint, jit, functions with rules, gradients within). Each node is a
function of a vector x and a vector y that it is closed over, so a program can be
traced as often as JAX likes.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

#: Elements of each vector.
SIZE = 3

Node = Callable[[Any, Any], Any]
Stop = Callable[[Any], Any]


def program(
    seed: int, *, stop: Stop = lax.stop_gradient, depth: int = 2, ruled: bool = True
) -> Callable[[Any, Any], Any]:
    """A scalar function of two vectors, of nodes `depth` deep.

    With another `stop` it is the same without stops; `ruled` says whether functions
    with rules of their own are in it, of which one has no forward mode, and which JAX
    forgets at order two in a scan.
    """
    drawn = _Drawing(seed, stop, ruled)
    node = drawn.node(depth)
    while not drawn.stops:
        node = drawn.node(depth)
    return lambda x, y: jnp.sum(jnp.tanh(node(x, y)) * jnp.cos(x))


def arguments(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The vectors that a program is evaluated at."""
    x, y = np.random.default_rng([seed, 1]).uniform(-1.2, 1.2, (2, SIZE))
    return x.astype(np.float32), y.astype(np.float32)


@jax.custom_jvp
def _ruled(v: Any) -> Any:
    return jnp.sin(v)


@_ruled.defjvp
def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (v,), (t,) = primals, tangents
    return _ruled(v), 2.0 * lax.stop_gradient(jnp.cos(v)) * t


@jax.custom_vjp
def _scaled(v: Any, w: Any) -> Any:
    return v * w


_scaled.defvjp(
    lambda v, w: (_scaled(v, w), (v, lax.stop_gradient(w))),
    lambda kept, g: (3.0 * g * kept[1], g * kept[0]),
)


class _Drawing:
    """Draws nodes and counts their stops."""

    def __init__(self, seed: int, stop: Stop, ruled: bool) -> None:
        self.random = np.random.default_rng([seed, 0])
        self.kinds = _KINDS + _RULED * ruled
        self.stop = stop
        self.stops = 0

    def node(self, depth: int) -> Node:
        """A node of at most `depth` below it."""
        kinds = self.kinds if depth else _LEAVES
        return kinds[self.random.integers(len(kinds))](self, depth - 1)

    def stopping(self) -> Stop:
        """Half of the time a stop."""
        if self.random.random() < 0.5:
            return lambda v: v
        self.stops += 1
        return self.stop

    def leaf(self, _: int) -> Node:
        if self.random.random() < 0.3:
            return lambda x, y: y
        return lambda x, y: x

    def stopped_x(self, _: int) -> Node:
        self.stops += 1
        return lambda x, y: self.stop(x)

    def unary(self, depth: int) -> Node:
        names = ("sin", "tanh", "square", "exp", "abs")
        name = names[self.random.integers(len(names))]
        f = self.node(depth)
        return lambda x, y: getattr(jnp, name)(0.5 * jnp.tanh(f(x, y)) + 0.1)

    def stopped(self, depth: int) -> Node:
        self.stops += 1
        f = self.node(depth)
        return lambda x, y: self.stop(f(x, y)) + 0.5 * x

    def binary(self, depth: int) -> Node:
        f, g, s = self.node(depth), self.node(depth), self.stopping()
        if self.random.random() < 0.5:
            return lambda x, y: f(x, y) * s(g(x, y))
        return lambda x, y: f(x, y) - s(g(x, y))

    def straight_through(self, depth: int) -> Node:
        self.stops += 1
        f = self.node(depth)

        def node(x: Any, y: Any) -> Any:
            v = f(x, y)
            return v + self.stop(jnp.round(4.0 * v) / 4.0 - v)

        return node

    def scan(self, depth: int) -> Node:
        f, s, t = self.node(depth), self.stopping(), self.stopping()

        def node(x: Any, y: Any) -> Any:
            def step(carry: Any, row: Any) -> tuple[Any, Any]:
                after = jnp.tanh(f(s(carry), y) * 0.7 + row)
                return after, t(carry) * row

            last, seen = lax.scan(step, x, jnp.stack([y, x]))
            return last + jnp.sum(seen, axis=0)

        return node

    def loop(self, depth: int) -> Node:
        f, s = self.node(depth), self.stopping()
        return lambda x, y: lax.fori_loop(
            0, 3, lambda i, v: jnp.tanh(f(v, s(y))) + 0.1 * i, x
        )

    def cond(self, depth: int) -> Node:
        f, g, s = self.node(depth), self.node(depth), self.stopping()
        return lambda x, y: lax.cond(
            jnp.sum(s(x)) > 0.0, lambda v: f(s(v), y), lambda v: g(v, s(y)), x
        )

    def switch(self, depth: int) -> Node:
        nodes, s = [self.node(depth) for _ in range(3)], self.stopping()
        return lambda x, y: lax.switch(
            jnp.argmax(s(y)), [lambda x, y, n=n: n(x, y) for n in nodes], x, y
        )

    def vmap(self, depth: int) -> Node:
        f, s = self.node(depth), self.stopping()
        return lambda x, y: jnp.sum(
            jax.vmap(lambda v: f(v, s(y)))(jnp.stack([x, y, x * y])), axis=0
        )

    def checkpoint(self, depth: int) -> Node:
        f, s = self.node(depth), self.stopping()
        return lambda x, y: jax.checkpoint(lambda v: s(jnp.sin(v)) * f(v, y))(x)

    def jit(self, depth: int) -> Node:
        f, s = self.node(depth), self.stopping()
        return lambda x, y: jax.jit(lambda v, w: f(s(v), w) + v)(x, y)

    def ruled(self, depth: int) -> Node:
        f, s = self.node(depth), self.stopping()
        return lambda x, y: _ruled(s(f(x, y)) + 0.5 * x)

    def scaled(self, depth: int) -> Node:
        f, g, s = self.node(depth), self.node(depth), self.stopping()
        return lambda x, y: _scaled(f(x, y), s(g(x, y)))

    def tree(self, depth: int) -> Node:
        self.stops += 1
        f, g = self.node(depth), self.node(depth)

        def node(x: Any, y: Any) -> Any:
            kept = self.stop({"f": f(x, y), "rest": (x, jnp.arange(SIZE))})
            return kept["f"] * g(x, y) + kept["rest"][1] * x

        return node

    def gradient(self, depth: int) -> Node:
        f, s = self.node(min(depth, 0)), self.stopping()
        return lambda x, y: jax.grad(lambda v: jnp.sum(f(s(v), y) * jnp.sin(v) * x))(x)


_KINDS = (
    _Drawing.unary,
    _Drawing.stopped,
    _Drawing.binary,
    _Drawing.straight_through,
    _Drawing.scan,
    _Drawing.loop,
    _Drawing.cond,
    _Drawing.switch,
    _Drawing.vmap,
    _Drawing.checkpoint,
    _Drawing.jit,
    _Drawing.tree,
    _Drawing.gradient,
)
_LEAVES = (_Drawing.leaf, _Drawing.leaf, _Drawing.stopped_x)
_RULED = (_Drawing.ruled, _Drawing.scaled)
