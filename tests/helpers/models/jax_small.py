"""Whole programs in JAX, small enough for the reference interpreter."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers.oracles.jax_gradients import Case, array, integers
from jax import lax

PROGRAM_TOLERANCE = 1e-4


def _weights(*shapes, seed=0):
    return tuple(
        array(*shape, seed=seed + i, low=-0.4, high=0.4)
        for i, shape in enumerate(shapes)
    )


def _cross_entropy(logits, labels):
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)
    return -picked.mean()


def mlp(w1, b1, w2, b2, x, labels):
    """Two layers, ReLU, cross entropy."""
    return _cross_entropy(jax.nn.relu(x @ w1 + b1) @ w2 + b2, labels)


def _layer_norm(x, g, b):
    centred = x - x.mean(-1, keepdims=True)
    return (
        centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * g + b
    )


def _attention(q, k, v):
    t = q.shape[1]
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    masked = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(masked), v)


def gpt(wte, wpe, g1, c1, wqkv, wo, g2, c2, w1, w2, g3, c3, tokens, labels):
    """One pre-norm block with GELU and a head tied to the embedding."""
    b, t = tokens.shape
    x = wte[tokens] + wpe[:t]
    q, k, v = (
        y.reshape(b, t, 2, -1) for y in jnp.split(_layer_norm(x, g1, c1) @ wqkv, 3, -1)
    )
    x = x + _attention(q, k, v).reshape(b, t, -1) @ wo
    x = x + jax.nn.gelu(_layer_norm(x, g2, c2) @ w1, approximate=False) @ w2
    return _cross_entropy(_layer_norm(x, g3, c3) @ wte.T, labels)


def _rms_norm(x, g):
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * g


def _rope(x):
    """Rotary positions on [batch, time, heads, width]."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 0.5 ** jnp.arange(half)
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def llama(emb, g1, wq, wk, wv, wo, g2, wg, wu, wd, head, tokens, labels):
    """RMSNorm, rotary positions, grouped queries (4 heads on 2), SwiGLU."""
    b, t = tokens.shape
    x = emb[tokens]
    h = _rms_norm(x, g1)
    q = _rope((h @ wq).reshape(b, t, 4, -1))
    k = jnp.repeat(_rope((h @ wk).reshape(b, t, 2, -1)), 2, axis=2)
    v = jnp.repeat((h @ wv).reshape(b, t, 2, -1), 2, axis=2)
    x = x + _attention(q, k, v).reshape(b, t, -1) @ wo
    h = _rms_norm(x, g2)
    x = x + (jax.nn.silu(h @ wg) * (h @ wu)) @ wd
    return _cross_entropy(x @ head, labels)


def _pool(x, init, op, size, stride, padding):
    window, strides = (1, size, size, 1), (1, stride, stride, 1)
    return lax.reduce_window(x, np.float32(init), op, window, strides, padding)


def _conv(x, w, stride=1, groups=1):
    return lax.conv_general_dilated(
        x,
        w,
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def _batch_norm(x, g, b):
    mean, var = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(var + 1e-5) * g + b


def cnn(w1, g1, c1, w2, w3, w4, x, labels):
    """Strided, depthwise and plain convolutions, batch norm, both poolings."""
    x = jax.nn.relu(_batch_norm(_conv(x, w1), g1, c1))
    x = _pool(x, -np.inf, lax.max, 3, 2, "SAME")
    x = x + _conv(jax.nn.silu(x), w2, groups=4)
    x = jnp.tanh(_conv(x, w3, stride=2))
    x = _pool(x, 0.0, lax.add, 2, 1, "VALID") / 4
    return _cross_entropy(x.reshape(x.shape[0], -1) @ w4, labels)


def lstm(wx, wh, b, head, xs, labels):
    """A scan over time with four gates."""

    def step(state, x):
        h, c = state
        i, f, g, o = jnp.split(x @ wx + h @ wh + b, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((xs.shape[1], wh.shape[0]))
    _, hs = lax.scan(step, (zero, zero), xs)
    return _cross_entropy(hs[-1] @ head, labels)


def mixture(gate, experts, x, target):
    """Top-2 of four experts, weighted by the gate."""
    weights, chosen = lax.top_k(jax.nn.softmax(x @ gate), 2)
    outputs = jnp.einsum("nd,nkde->nke", x, experts[chosen])
    return jnp.square((outputs * weights[..., None]).sum(1) - target).mean()


def graph(w1, w2, features, source, target, wanted):
    """Message passing by segment sums."""
    x = features
    for w in (w1, w2):
        x = jnp.tanh(jax.ops.segment_sum(x[source], target, x.shape[0]) @ w)
    return jnp.square(x - wanted).mean()


def neural_ode(w, x, wanted):
    """Explicit Runge-Kutta steps in a loop."""

    def field(y):
        return jnp.tanh(y @ w)

    def step(_, y):
        middle = y + 0.05 * field(y)
        return y + 0.1 * field(middle)

    return jnp.square(lax.fori_loop(0, 6, step, x) - wanted).mean()


def spectral(w, x):
    """A loss on the spectrum of a filtered signal."""
    spectrum = jnp.fft.fft(x * w)
    return jnp.log1p(jnp.abs(spectrum)).mean()


def physics(x, y):
    """Pairwise potential with sorting, norms and powers."""
    d = jnp.sqrt(jnp.square(x[:, None] - y[None]).sum(-1) + 0.1)
    return (jnp.sort(d, -1)[:, :2] ** 1.5).sum() + jnp.linalg.norm(x)


TOKENS, LABELS = integers(2, 5, high=11), integers(2, 5, high=11, seed=1)
ONES, BIAS = array(8, low=0.8, high=1.2), array(8, low=-0.1, high=0.1)

PROGRAMS = [
    Case(
        "mlp",
        mlp,
        (*_weights((6, 8), (8,), (8, 5), (5,)), array(7, 6), integers(7, high=5)),
    ),
    Case(
        "gpt",
        gpt,
        (
            *_weights((11, 8), (6, 8)),
            *(ONES, BIAS),
            *_weights((8, 24), (8, 8), seed=3),
            *(ONES, BIAS),
            *_weights((8, 16), (16, 8), seed=5),
            *(ONES, BIAS),
            *(TOKENS, LABELS),
        ),
    ),
    Case(
        "llama",
        llama,
        (
            *_weights((11, 8)),
            ONES,
            *_weights((8, 16), (8, 8), (8, 8), (16, 8), seed=2),
            ONES,
            *_weights((8, 12), (8, 12), (12, 8), (8, 11), seed=7),
            *(TOKENS, LABELS),
        ),
    ),
    Case(
        "cnn",
        cnn,
        (
            *_weights((3, 3, 2, 4)),
            *(ONES[:4], BIAS[:4]),
            *_weights((3, 3, 1, 4), (2, 2, 4, 6), (6, 3), seed=4),
            *(array(2, 8, 8, 2), integers(2, high=3)),
        ),
    ),
    Case(
        "lstm",
        lstm,
        (
            *_weights((3, 16), (4, 16), (16,), (4, 5)),
            array(5, 2, 3),
            integers(2, high=5),
        ),
    ),
    Case("mixture", mixture, (*_weights((4, 4), (4, 4, 3)), array(5, 4), array(5, 3))),
    Case(
        "graph",
        graph,
        (
            *_weights((4, 4), (4, 4), seed=3),
            array(5, 4),
            integers(9, high=5),
            integers(9, high=5, seed=1),
            array(5, 4),
        ),
    ),
    Case(
        "neural_ode", neural_ode, (*_weights((4, 4)), array(3, 4), array(3, 4, seed=1))
    ),
    Case("spectral", spectral, (array(8), array(3, 8))),
    Case("physics", physics, (array(4, 3), array(5, 3))),
]
