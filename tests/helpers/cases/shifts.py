"""Cases in which a maximum's derivative cancels, and near misses in which not."""

import jax
import jax.numpy as jnp
from helpers.oracles.jax_gradients import Case, array

X = array(3, 5)


def _max(x):
    return x.max(-1, keepdims=True)


def softmax(x):
    """e / Σe."""
    e = jnp.exp(x - _max(x))
    return e / e.sum(-1, keepdims=True)


def log_softmax(x):
    """d − log Σ exp d."""
    d = x - _max(x)
    return d - jnp.log(jnp.exp(d).sum(-1, keepdims=True))


def log_sum_exp(x):
    """m + log Σ exp(x − m)."""
    m = x.max(-1)
    return m + jnp.log(jnp.exp(x - m[:, None]).sum(-1))


def transposed(x):
    """Rows that become columns on the way."""
    e = jnp.exp(x - _max(x)).T
    return e / e.sum(0)


def times_inverse(x):
    """e · (1/Σe): torch writes attention so."""
    e = jnp.exp(x - _max(x))
    return e * (1.0 / e.sum(-1, keepdims=True))


def all_axes(x):
    """One maximum for everything."""
    e = jnp.exp(x - x.max())
    return e / e.sum()


CANCELLING = [
    softmax,
    log_softmax,
    log_sum_exp,
    transposed,
    times_inverse,
    all_axes,
    jax.nn.logsumexp,
    jax.nn.log_softmax,
]


def with_epsilon(x):
    """The sum is no longer scaled as a whole."""
    e = jnp.exp(x - _max(x))
    return e / (e.sum(-1, keepdims=True) + 0.1)


def from_one_on(x):
    """The sum begins with a number that is not scaled. JAX's own gradient is wrong."""
    e = jnp.exp(x - _max(x))
    return e / jax.lax.reduce(e, jnp.float32(1), jax.lax.add, (1,))[:, None]


def exponential_kept(x):
    """e leaves by another way too."""
    e = jnp.exp(x - _max(x))
    return e / e.sum(-1, keepdims=True), e


def wrong_axis(x):
    """The sum mixes rows."""
    e = jnp.exp(x - _max(x))
    return e / e.sum(0)


def maximum_returned(x):
    """m itself is a result."""
    return softmax(x), x.max(-1)


def maximum_scaled(x):
    """Twice m."""
    e = jnp.exp(x - 2 * _max(x))
    return e / e.sum(-1, keepdims=True) + _max(x)


def plain_difference(x):
    """No normalisation at all."""
    return jnp.exp(x - _max(x))


def rows_crossed(x):
    """δ of one row meets that of another."""
    y = x[:, :3]
    e = jnp.exp(y - _max(y))
    return e / e.sum(-1)[None, :]


KEPT = [
    with_epsilon,
    from_one_on,
    exponential_kept,
    wrong_axis,
    maximum_returned,
    maximum_scaled,
    plain_difference,
    rows_crossed,
]

CASES = [
    Case(fn.__name__, fn, (X,)) for fn in (*CANCELLING, *KEPT) if fn != from_one_on
]
