"""Losses that hold more than layers: loops, factorisations, densities, optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers.models.jax_small import _cross_entropy, _weights
from helpers.oracles.jax_gradients import Case, array, integers, positive
from jax import lax

X, Y = array(6, 4), array(6, 3, seed=1)


def gaussian_process(lengths, noise, inputs, targets):
    """The log marginal likelihood by a Cholesky factor."""
    scaled = inputs / jnp.exp(lengths)
    squares = jnp.square(scaled[:, None] - scaled[None]).sum(-1)
    kernel = jnp.exp(-0.5 * squares) + jnp.exp(noise) * jnp.eye(6)
    factor = jnp.linalg.cholesky(kernel)
    solved = lax.linalg.triangular_solve(factor, targets, left_side=True, lower=True)
    return 0.5 * jnp.square(solved).sum() + jnp.log(jnp.diagonal(factor)).sum()


def log_determinant(w):
    """log det of a positive matrix, and its inverse's trace by two solves."""
    matrix = w @ w.T + 2 * jnp.eye(4)
    factor = jnp.linalg.cholesky(matrix)
    inverse = lax.linalg.triangular_solve(
        factor, jnp.eye(4), left_side=True, lower=True
    )
    return 2 * jnp.log(jnp.diagonal(factor)).sum() + jnp.square(inverse).sum()


def least_squares(w, inputs, targets):
    """A ridge solution inside of the loss, by the normal equations."""
    features = jnp.tanh(inputs @ w)
    factor = jnp.linalg.cholesky(features.T @ features + 0.1 * jnp.eye(3))
    right = features.T @ targets
    half = lax.linalg.triangular_solve(factor, right, left_side=True, lower=True)
    solution = lax.linalg.triangular_solve(
        factor, half, left_side=True, lower=True, transpose_a=True
    )
    return jnp.square(features @ solution - targets).mean()


def whitening(w, inputs):
    """Features made uncorrelated by the inverse factor of their covariance."""
    h = inputs @ w
    h = h - h.mean(0)
    factor = jnp.linalg.cholesky(h.T @ h / 6 + 0.1 * jnp.eye(3))
    white = lax.linalg.triangular_solve(factor, h.T, left_side=True, lower=True)
    return jnp.cos(white).sum()


def pinn(w1, w2, points):
    """A differential equation's residual: derivatives of the model in the loss."""

    def u(x):
        return (jnp.tanh(x * w1) @ w2)[0]

    first = jax.vmap(jax.grad(lambda x: u(x)))(points)
    second = jax.vmap(jax.grad(jax.grad(lambda x: u(x))))(points)
    values = jax.vmap(u)(points)
    return jnp.square(second + 0.5 * first + values - jnp.sin(points)).mean()


def maml(w, inputs, targets):
    """The loss after one step of gradient descent on another half of the data."""

    def loss(w, x, y):
        return jnp.square(jnp.tanh(x @ w) - y).mean()

    adapted = w - 0.1 * jax.grad(loss)(w, inputs[:3], targets[:3])
    return loss(adapted, inputs[3:], targets[3:])


def unrolled(rate, start, inputs, targets):
    """The rate of four steps with momentum, through all of them."""

    def loss(w):
        return jnp.square(inputs @ w - targets).mean()

    def step(carry, _):
        w, m = carry
        m = 0.9 * m + jax.grad(loss)(w)
        return (w - jnp.exp(rate) * m, m), None

    (w, _), _ = lax.scan(step, (start, jnp.zeros_like(start)), None, length=4)
    return loss(w)


def fixed_point(w, x):
    """Twelve rounds towards z = tanh(w z + x)."""
    z = lax.fori_loop(0, 12, lambda _, z: jnp.tanh(z @ w + x), jnp.zeros_like(x))
    return jnp.square(z).sum()


def hopfield(patterns, state):
    """Energy after three steps of retrieval from stored patterns."""

    def step(_, s):
        return jax.nn.softmax(4 * s @ patterns.T) @ patterns

    final = lax.fori_loop(0, 3, step, state)
    energy = jax.nn.logsumexp(4 * final @ patterns.T, axis=-1) / 4
    return (0.5 * jnp.square(final).sum(-1) - energy).sum()


def spectral_norm(w, inputs):
    """A weight divided by its largest singular value, by power iteration."""

    def step(_, v):
        v = w.T @ (w @ v)
        return v / jnp.sqrt(jnp.square(v).sum())

    v = lax.stop_gradient(lax.fori_loop(0, 8, step, jnp.ones(3) / jnp.sqrt(3.0)))
    scale = jnp.sqrt(jnp.square(w @ v).sum())
    return jnp.tanh(inputs @ (w / scale)).sum()


def weight_norm(direction, length, inputs):
    """Length and direction apart, and instance norm behind them."""
    w = length * direction / jnp.sqrt(jnp.square(direction).sum(0))
    h = inputs @ w
    h = (h - h.mean(-1, keepdims=True)) * lax.rsqrt(h.var(-1, keepdims=True) + 1e-5)
    return jnp.sin(h).sum()


def contrastive(w, first, second):
    """InfoNCE between two views, on the sphere."""

    def embed(x):
        h = jnp.tanh(x @ w)
        return h * lax.rsqrt(jnp.square(h).sum(-1, keepdims=True))

    similar = embed(first) @ embed(second).T / 0.5
    labels = jnp.arange(6)
    return _cross_entropy(similar, labels) + _cross_entropy(similar.T, labels)


def triplet(w, anchor, positive_, negative):
    """Nearer to the positive than to the negative, by a margin."""

    def distance(a, b):
        return jnp.sqrt(jnp.square(a @ w - b @ w).sum(-1) + 1e-6)

    gap = distance(anchor, positive_) - distance(anchor, negative) + 0.3
    return jnp.maximum(gap, 0.0).mean()


def adversaries(generator, critic, noise, real):
    """A critic's loss with a gradient penalty at points in between."""

    def score(x):
        return (jnp.tanh(x @ critic)).sum(-1)

    fake = jnp.tanh(noise @ generator)
    between = 0.3 * real + 0.7 * fake
    slope = jax.grad(lambda x: score(x).sum())(between)
    penalty = jnp.square(jnp.sqrt(jnp.square(slope).sum(-1) + 1e-6) - 1).mean()
    return score(fake).mean() - score(real).mean() + 10 * penalty


def mixture_density(w, inputs, targets):
    """The log-likelihood of a mixture of three normals."""
    weight, mean, spread = jnp.split(inputs @ w, 3, -1)
    target = targets[:, :1]
    log_normal = -0.5 * jnp.square((target - mean) * jnp.exp(-spread)) - spread
    joint = jax.nn.log_softmax(weight) + log_normal
    return -jax.nn.logsumexp(joint, axis=-1).mean()


def counts(w, inputs, seen):
    """Poisson and negative binomial likelihoods: lgamma of what is learnt."""
    rate = jax.nn.softplus(inputs @ w[:, 0])
    shape = jax.nn.softplus(inputs @ w[:, 1]) + 0.5
    poisson = rate - seen * jnp.log(rate) + lax.lgamma(seen + 1.0)
    binomial = lax.lgamma(shape) - lax.lgamma(shape + seen)
    return (poisson + binomial + shape * jnp.log1p(rate / shape)).mean()


def beta(w, inputs, shares):
    """A Beta density and its entropy: digamma inside of the loss."""
    a, b = (jax.nn.softplus(inputs @ w[:, i]) + 0.5 for i in (0, 1))
    log_beta = lax.lgamma(a) + lax.lgamma(b) - lax.lgamma(a + b)
    density = (a - 1) * jnp.log(shares) + (b - 1) * jnp.log1p(-shares) - log_beta
    entropy = log_beta - (a - 1) * lax.digamma(a) - (b - 1) * lax.digamma(b)
    return (entropy + (a + b - 2) * lax.digamma(a + b) - density).mean()


def directions(w, inputs, angles):
    """A von Mises likelihood: a Bessel function normalises it."""
    mean, spread = (inputs @ w[:, 0]), jax.nn.softplus(inputs @ w[:, 1])
    log_bessel = jnp.log(lax.bessel_i0e(spread)) + spread
    return (log_bessel - spread * jnp.cos(angles - mean)).mean()


def quantiles(w, inputs, targets):
    """Pinball losses, and the area between sorted predictions and targets."""
    predicted = inputs @ w
    error = targets - predicted
    levels = jnp.array([0.1, 0.5, 0.9])
    pinball = jnp.maximum(levels * error, (levels - 1) * error).mean()
    return pinball + jnp.abs(jnp.sort(predicted, 0) - jnp.sort(targets, 0)).mean()


def soft_ranks(w, inputs, targets):
    """Ranks by pairwise sigmoids, correlated with the true order."""
    score = (inputs @ w)[:, 0]
    ranks = jax.nn.sigmoid((score[:, None] - score[None]) / 0.3).sum(1)
    order = jnp.argsort(jnp.argsort(targets[:, 0])).astype(jnp.float32)
    return jnp.square(ranks - order).mean()


def top_k(w, inputs):
    """Only the two largest scores of each row count."""
    best, _ = lax.top_k(inputs @ w, 2)
    return (best[:, 0] * 0.7 + jnp.square(best[:, 1])).sum()


def running(w, inputs):
    """Running sums, products (one of them zero) and maxima."""
    h = inputs @ w
    products = jnp.cumprod((1 + 0.3 * h).at[3, 0].set(0.0), 0)
    return (jnp.cumsum(h, 0) * products).sum() + lax.cummax(h, 0).sum()


def hypernetwork(w, codes, inputs):
    """One network's output is another's weights, one for each example."""
    weights = (codes @ w).reshape(6, 4, 3)
    return jnp.square(jnp.einsum("bi,bio->bo", inputs, jnp.tanh(weights))).mean()


def complex_network(re, im, inputs):
    """Complex weights and phases; the loss is real."""
    z = (inputs + 0.5j * inputs[:, ::-1]) @ (re + 1j * im)
    z = z * jnp.exp(1j * jnp.abs(z))
    return jnp.square(jnp.abs(z)).mean() + jnp.real(z * jnp.conj(z[::-1])).sum() * 0.1


def fourier_operator(spectrum_re, spectrum_im, skip, signal):
    """One layer of a Fourier neural operator, low frequencies mixed."""
    modes = jnp.fft.rfft(signal, axis=1)[:, :3]
    mixed = jnp.einsum("bkc,kcd->bkd", modes, spectrum_re + 1j * spectrum_im)
    padded = jnp.pad(mixed, ((0, 0), (0, 2), (0, 0)))
    back = jnp.fft.irfft(padded, n=8, axis=1)
    return jnp.square(jnp.tanh(back + signal @ skip) - signal).mean()


def adaptive(rate, start):
    """Halve the step until it fits, a number of times that depends on the data."""

    def go_on(carry):
        return jnp.logical_and(carry[0] < 1.0, carry[2] < 64)

    def step(carry):
        t, x, n = carry
        h = jnp.minimum(0.1 / (1 + jnp.abs(x[0])), 1.0 - t + 1e-6)
        return t + h, x - h * jnp.exp(rate) * jnp.sin(x), n + 1

    _, x, _ = lax.while_loop(go_on, step, (0.0, start, 0))
    return jnp.square(x).sum()


def adaptive_by_scan(rate, start):
    """The same with a fixed number of rounds: the oracle, which JAX differentiates."""

    def step(carry, _):
        t, x = carry
        h = jnp.minimum(0.1 / (1 + jnp.abs(x[0])), 1.0 - t + 1e-6)
        active = t < 1.0
        moved = x - h * jnp.exp(rate) * jnp.sin(x)
        return (jnp.where(active, t + h, t), jnp.where(active, moved, x)), None

    (_, x), _ = lax.scan(step, (0.0, start), None, length=64)
    return jnp.square(x).sum()


def narrow(w1, w2, inputs, labels):
    """bf16 products, f32 sums and loss, as mixed-precision training has it."""
    x = inputs.astype(jnp.bfloat16)
    hidden = jnp.tanh((x @ w1.astype(jnp.bfloat16)).astype(jnp.float32))
    logits = hidden.astype(jnp.bfloat16) @ w2.astype(jnp.bfloat16)
    return _cross_entropy(logits.astype(jnp.float32), labels)


LOWERED_FOR_TPU = "tpu"  # where the factorisations stay ops and are no calls

PROGRAMS = [
    *(
        Case(name, fn, args, platform=LOWERED_FOR_TPU)
        for name, fn, args in (
            ("gaussian_process", gaussian_process, (*_weights((4,), ()), X, Y)),
            ("log_determinant", log_determinant, _weights((4, 4))),
            ("least_squares", least_squares, (*_weights((4, 3)), X, Y)),
            ("whitening", whitening, (*_weights((4, 3)), X)),
        )
    ),
    Case("pinn", pinn, (*_weights((8,), (8, 1)), array(7, seed=3))),
    Case("maml", maml, (*_weights((4, 3)), X, Y)),
    Case("unrolled", unrolled, (np.float32(-2.0), *_weights((4, 3)), X, Y)),
    Case("fixed_point", fixed_point, (*_weights((4, 4)), X)),
    Case("hopfield", hopfield, (array(5, 4, seed=7), X)),
    Case("spectral_norm", spectral_norm, (*_weights((4, 3)), X)),
    Case("weight_norm", weight_norm, (*_weights((4, 3)), positive(3), X)),
    Case("contrastive", contrastive, (*_weights((4, 3)), X, array(6, 4, seed=4))),
    Case(
        "triplet",
        triplet,
        (*_weights((4, 3)), X, array(6, 4, seed=4), array(6, 4, seed=5)),
    ),
    Case(
        "adversaries",
        adversaries,
        (*_weights((3, 4), (4, 5)), array(6, 3, seed=8), X),
    ),
    Case("mixture_density", mixture_density, (*_weights((4, 9)), X, Y)),
    Case(
        "counts",
        counts,
        (*_weights((4, 2)), X, integers(6, high=5).astype(np.float32)),
    ),
    Case("beta", beta, (*_weights((4, 2)), X, array(6, low=0.1, high=0.9))),
    Case("directions", directions, (*_weights((4, 2)), X, array(6, seed=2))),
    Case("quantiles", quantiles, (*_weights((4, 3)), X, Y)),
    Case("soft_ranks", soft_ranks, (*_weights((4, 1)), X, Y)),
    Case("top_k", top_k, (*_weights((4, 5)), X)),
    Case("running", running, (*_weights((4, 3)), X)),
    Case("hypernetwork", hypernetwork, (*_weights((2, 12)), array(6, 2, seed=3), X)),
    Case("complex_network", complex_network, (*_weights((4, 3), (4, 3)), X)),
    Case(
        "fourier_operator",
        fourier_operator,
        (*_weights((3, 2, 2), (3, 2, 2), (2, 2)), array(2, 8, 2)),
    ),
    Case(
        "adaptive",
        adaptive_by_scan,
        (np.float32(0.5), array(4, low=0.5, high=2.0)),
    ),
    Case(
        "narrow",
        narrow,
        (*_weights((4, 8), (8, 3)), X, integers(6, high=3)),
        tolerance=3e-2,
    ),
]
