"""Random `jax.custom_jvp` rules with stops in the loops and branches they are made of.

A seed decides a tree of maps that are linear in the tangent t and use the point x.
What multiplies the tangent may be stopped anywhere. With `stopped` a leaf stops the
tangent itself, which leaves a rule for forward mode only.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Map = Callable[[Any, Any], Any]


def ruled(seed: int, *, stopped: bool = False, depth: int = 2) -> Callable[[Any], Any]:
    """A scalar function of a vector, through a function with a drawn rule."""
    drawn = _Drawing(seed, stopped)
    tangent = drawn.map(depth)

    @jax.custom_jvp
    def function(x: Any) -> Any:
        return jnp.sin(x)

    @function.defjvp
    def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        return function(x), tangent(t, x)

    return lambda x: jnp.sum(function(0.5 * x) * jnp.cos(x))


class _Drawing:
    def __init__(self, seed: int, stopped: bool) -> None:
        self.random = np.random.default_rng([seed, 2])
        self.stopped = stopped

    def map(self, depth: int) -> Map:
        if not depth:
            return self.leaf()
        return _KINDS[self.random.integers(len(_KINDS))](self, depth - 1)

    def of_x(self) -> Callable[[Any], Any]:
        """Half of the time a stop, of what is no tangent."""
        return lax.stop_gradient if self.random.random() < 0.5 else lambda x: x

    def leaf(self) -> Map:
        s, stops = self.of_x(), self.stopped
        self.stopped = False
        if stops:
            return lambda t, x: lax.stop_gradient(t) + t
        return lambda t, x: jnp.cos(s(x)) * t

    def carried(self, depth: int) -> Map:
        f, s = self.map(depth), self.of_x()

        def step(carry: Any, row: Any) -> tuple[Any, Any]:
            x, t = carry
            return (jnp.tanh(s(x) + row), f(t, s(x))), t * s(row)

        def scan(t: Any, x: Any) -> Any:
            (_, last), seen = lax.scan(step, (x, t), jnp.stack([x, jnp.cos(x)]))
            return last + jnp.sum(seen, axis=0)

        return scan

    def closed(self, depth: int) -> Map:
        f, s = self.map(depth), self.of_x()
        return lambda t, x: lax.fori_loop(
            0, 3, lambda i, total: total * s(x) + f(t, x), jnp.zeros_like(t)
        )

    def cond(self, depth: int) -> Map:
        f, g, s = self.map(depth), self.map(depth), self.of_x()
        return lambda t, x: lax.cond(
            jnp.sum(x) > 0.0, lambda v: f(v, s(x)), lambda v: g(v, x) * s(x), t
        )

    def vmap(self, depth: int) -> Map:
        f, s = self.map(depth), self.of_x()
        return lambda t, x: jnp.sum(
            jax.vmap(lambda a: f(t * s(a), x))(jnp.stack([x, x * x])), axis=0
        )

    def checkpoint(self, depth: int) -> Map:
        f, s = self.map(depth), self.of_x()
        return lambda t, x: jax.checkpoint(lambda v: f(v, x) * jnp.sin(s(x)))(t)

    def jit(self, depth: int) -> Map:
        f, s = self.map(depth), self.of_x()
        return lambda t, x: jax.jit(lambda v, x: f(v, s(x)) + v)(t, x)


_KINDS = (
    _Drawing.carried,
    _Drawing.closed,
    _Drawing.cond,
    _Drawing.vmap,
    _Drawing.checkpoint,
    _Drawing.jit,
)
