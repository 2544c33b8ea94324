"""Forward and reverse mode agree with each other: ⟨g, J v⟩ = ⟨Jᵀ g, v⟩.

The two modes take different ways through most rules, so each checks the other in
f64 to rounding, for arguments that nobody chose. Both wrong in the same way is what
central differences are for. The last tests make rules wrong by a thousandth, and
see to it that this is noticed.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from helpers.gradients import derived_module
from helpers.interpreter import Interpreter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from jax import numpy as jnp

from pcp.autodiff import registry
from pcp.autodiff.kinds import Rule, Site, Vjp
from pcp.dialect import hlo

TOLERANCE = 1e-10
STEP = 1e-5

Function = Callable[..., Any]

#: For arguments x and y of one shape, with all entries in [0.3, 0.9].
OPS: dict[str, Function] = {
    "add": lambda x, y: x + y,
    "atan2": lax.atan2,
    "cbrt": lambda x, y: lax.cbrt(x) * y,
    "clamp": lambda x, y: lax.clamp(0.4, x, 0.8) * y,
    "concatenate": lambda x, y: jnp.concatenate([x, y * x], -1),
    "cosine": lambda x, y: jnp.cos(x * y),
    "cumulative": lambda x, y: jnp.cumsum(x * y, -1),
    "divide": lambda x, y: x / y,
    "dot": lambda x, y: jnp.tensordot(x, y * y, [[0], [0]]),
    "exponential": lambda x, y: jnp.exp(x) - jnp.expm1(y),
    "gather": lambda x, y: (x * y)[::-1][:1],
    "log": lambda x, y: jnp.log(x) * jnp.log1p(y),
    "logistic": lambda x, y: jax.nn.sigmoid(x - y),
    "loop": lambda x, y: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) * y, x),
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "pad": lambda x, y: jnp.pad(x, 1) * jnp.pad(y, 1, constant_values=2.0),
    "power": lambda x, y: x**y,
    "product": lambda x, y: jnp.prod(x * y, 0),
    "reduce_max": lambda x, y: jnp.max(x * y, -1),
    "remainder": lambda x, y: lax.rem(x, y),
    "reshape": lambda x, y: jnp.ravel(x) * jnp.sin(jnp.ravel(y)),
    "rsqrt": lambda x, y: lax.rsqrt(x) * jnp.sqrt(y),
    "scatter": lambda x, y: jnp.asarray(x).at[0].add(y[-1] * x[0]),
    "select": lambda x, y: jnp.where(x > y, jnp.sin(x), y * y),
    "softmax": lambda x, y: jax.nn.softmax(x * y, -1),
    "sort": lambda x, y: jnp.sort(x, -1) * y,
    "tan": lambda x, y: jnp.tan(x) * jnp.tanh(y),
    "transpose": lambda x, y: (x * y).T @ x.reshape(x.shape[0], -1),
    "while_of_scan": lambda x, y: lax.scan(lambda c, r: (c * r, c + r), y[0], x)[1],
}

SHAPES = st.lists(st.integers(1, 3), min_size=2, max_size=2).map(tuple)
BUDGET = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def drawn(shape: tuple[int, ...], seed: int, count: int) -> list[np.ndarray]:
    """Arrays of entries of which no two are nearer than 1e-3: no ties, no kinks."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    grid = np.linspace(0.301, 0.899, 40 * count)
    chosen = rng.choice(len(grid), count * size, replace=False)
    return list(grid[chosen].reshape(count, *shape))


class Agreement:
    """One function at one point: its program, and what both modes say of it."""

    def __init__(
        self, fn: Function, shape: tuple[int, ...], seed: int, run: Interpreter
    ) -> None:
        with jax.enable_x64(True):
            self.primals = drawn(shape, seed, 2)
            text = jax.jit(fn, keep_unused=True).lower(*self.primals).as_text()
            self.result = np.asarray(fn(*self.primals))
        rng = np.random.default_rng(seed + 1)
        self.v = [rng.standard_normal(shape) for _ in self.primals]
        self.g = rng.standard_normal(self.result.shape)
        self.run, self.text = run, text

    def _of(self, pass_: str, more: list[np.ndarray]) -> list[np.ndarray]:
        derived = str(derived_module(self.text, pass_))
        return self.run.run(derived, [*self.primals, *more])[1:]

    def forward(self) -> float:
        """⟨g, J v⟩."""
        (pushed,) = self._of("pcp-jvp", self.v)
        return float(np.vdot(self.g, pushed))

    def reverse(self) -> float:
        """⟨Jᵀ g, v⟩."""
        pulled = self._of("pcp-vjp", [self.g])
        return float(sum(np.vdot(a, b) for a, b in zip(pulled, self.v, strict=True)))

    def difference(self) -> float:
        """⟨g, (f(x + h v) - f(x - h v)) / 2h⟩ by the program itself."""
        ends = []
        for h in (STEP, -STEP):
            at = [x + h * v for x, v in zip(self.primals, self.v, strict=True)]
            ends.append(self.run.run(self.text, at)[0])
        return float(np.vdot(self.g, ends[0] - ends[1]) / (2 * STEP))

    def check(self) -> None:
        """All three are the same number."""
        forward, reverse, by_steps = self.forward(), self.reverse(), self.difference()
        np.testing.assert_allclose(reverse, forward, TOLERANCE, TOLERANCE)
        np.testing.assert_allclose(reverse, by_steps, 1e-6, 1e-6)


@pytest.mark.parametrize("name", OPS)
def test_modes_agree(name: str, interpreter: Interpreter) -> None:
    Agreement(OPS[name], (2, 3), len(name), interpreter).check()


@settings(BUDGET, max_examples=16)
@given(name=st.sampled_from(sorted(OPS)), shape=SHAPES, seed=st.integers(0, 10**6))
def test_modes_agree_anywhere(name, shape, seed, interpreter: Interpreter) -> None:
    Agreement(OPS[name], shape, seed, interpreter).check()


@pytest.mark.slow
@settings(BUDGET, max_examples=250)
@given(name=st.sampled_from(sorted(OPS)), shape=SHAPES, seed=st.integers(0, 10**6))
def test_modes_agree_at_many_points(name, shape, seed, interpreter) -> None:
    Agreement(OPS[name], shape, seed, interpreter).check()


# --- wrong rules are noticed ---

WRONG = {
    "stablehlo.exponential": "exponential",
    "stablehlo.multiply": "cbrt",
    "stablehlo.dot_general": "dot",
    "stablehlo.reduce": "product",
    "stablehlo.divide": "divide",
    "stablehlo.concatenate": "concatenate",
}


def bent(rule: Rule) -> Vjp:
    """The rule with every cotangent a thousandth too large."""

    def vjp(at: Site) -> list[Any]:
        return [
            None if g is None else hlo.multiply(g, hlo.constant_like(g, 1.001))
            for g in rule.vjp(at)
        ]

    return Vjp(vjp, getattr(rule, "forward", None))


@pytest.mark.parametrize("op", WRONG)
def test_a_rule_wrong_by_a_thousandth_is_noticed(
    op: str, interpreter: Interpreter
) -> None:
    rule = registry.find(op)
    assert rule is not None
    registry.register(op, bent(rule))
    try:
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            Agreement(OPS[WRONG[op]], (2, 3), 5, interpreter).check()
    finally:
        registry.unregister(op)
