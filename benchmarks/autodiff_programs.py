"""Ten losses in JAX for benchmarks/autodiff.py, each a function of weights and data.

A program is `(loss, weights, data)`: `loss(weights, *data)` is a scalar, `weights`
a list of float32 arrays to differentiate for, and `data` what is only read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Program:
    """A loss with the arrays to call it on."""

    loss: Callable[..., Any]
    weights: list[np.ndarray]
    data: list[np.ndarray]


def _arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[np.ndarray]:
    """Normal numbers, scaled so that products of them stay near one."""
    random = np.random.default_rng(seed)
    return [
        (random.normal(size=s) / np.sqrt(s[0] if len(s) > 1 else 1)).astype(np.float32)
        for s in shapes
    ]


def _ids(high: int, *shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.int32)


def _cross_entropy(logits: Any, targets: Any) -> Any:
    import jax
    import jax.numpy as jnp

    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
    return -picked.mean()


def _norm(x: Any, weight: Any, bias: Any) -> Any:
    import jax
    import jax.numpy as jnp

    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weight + bias


def _rms(x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)


def mlp() -> Program:
    """Three dense layers with GELU and cross-entropy."""
    import jax

    def loss(weights: list, x: Any, targets: Any) -> Any:
        for w, b in zip(weights[:-2:2], weights[1:-2:2], strict=True):
            x = jax.nn.gelu(x @ w + b)
        return _cross_entropy(x @ weights[-2] + weights[-1], targets)

    weights = _arrays((64, 256), (256,), (256, 256), (256,), (256, 10), (10,))
    return Program(loss, weights, [*_arrays((128, 64), seed=2), _ids(10, 128)])


def cnn() -> Program:
    """Convolutions, ReLU, max pooling, a dense head."""
    import jax
    import jax.numpy as jnp

    def loss(weights: list, x: Any, targets: Any) -> Any:
        for w in weights[:2]:
            dims = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=dims
            )
            x = jax.nn.relu(x)
            window, step = (1, 2, 2, 1), (1, 2, 2, 1)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, step, "VALID")
        return _cross_entropy(x.reshape(x.shape[0], -1) @ weights[2], targets)

    weights = _arrays((3, 3, 3, 16), (3, 3, 16, 32), (7 * 7 * 32, 10))
    return Program(loss, weights, [*_arrays((8, 28, 28, 3), seed=2), _ids(10, 8)])


def resnet() -> Program:
    """Residual blocks of convolution and batch norm, mean pooling."""
    import jax
    import jax.numpy as jnp

    def convolve(x: Any, w: Any) -> Any:
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=dims
        )

    def batch_norm(x: Any, scale: Any, shift: Any) -> Any:
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + shift

    def loss(weights: list, x: Any, targets: Any) -> Any:
        x = convolve(x, weights[0])
        for i in range(1, 13, 6):
            w1, s1, b1, w2, s2, b2 = weights[i : i + 6]
            y = jax.nn.relu(batch_norm(convolve(x, w1), s1, b1))
            x = jax.nn.relu(x + batch_norm(convolve(y, w2), s2, b2))
        return _cross_entropy(jnp.mean(x, (1, 2)) @ weights[-1], targets)

    block = [(3, 3, 16, 16), (16,), (16,)] * 2
    weights = _arrays((3, 3, 3, 16), *block, *block, (16, 10))
    return Program(loss, weights, [*_arrays((8, 16, 16, 3), seed=2), _ids(10, 8)])


def _gpt_loss(heads: int) -> Callable[..., Any]:
    """A pre-norm decoder with RMS norm, rotary positions and squared ReLU."""
    import jax
    import jax.numpy as jnp

    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos + b * sin, b * cos - a * sin], -1)

    def block(x: Any, weights: list, cos: Any, sin: Any, mask: Any) -> Any:
        query, key, value, out, up, down = weights
        n, t, d = x.shape
        y = _rms(x)
        q, k, v = ((y @ w).reshape(n, t, heads, -1) for w in (query, key, value))
        q, k = _rms(rotate(q, cos, sin)), _rms(rotate(k, cos, sin))
        scores = jnp.einsum("nthd,nshd->nhts", q, k) / np.sqrt(d // heads)
        mixed = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        x = x + jnp.einsum("nhts,nshd->nthd", mixed, v).reshape(n, t, d) @ out
        return x + jnp.square(jax.nn.relu(_rms(x) @ up)) @ down

    def loss(weights: list, ids: Any, targets: Any) -> Any:
        t, d = ids.shape[1], weights[0].shape[1]
        half = d // heads // 2
        rates = 10000.0 ** (-jnp.arange(half) / half)
        angles = (jnp.arange(t)[:, None] * rates)[None, :, None, :]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        mask = jnp.tril(jnp.ones((t, t), bool))
        x = _rms(weights[0][ids])
        for i in range(1, len(weights) - 1, 6):
            x = block(x, weights[i : i + 6], cos, sin, mask)
        logits = _rms(x) @ weights[-1]
        return _cross_entropy(15 * jnp.tanh(logits / 15), targets)

    return loss


def gpt(
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    tokens: int = 64,
    vocabulary: int = 128,
    batch: int = 4,
) -> Program:
    """A decoder-only language model in the style of nanochat."""
    layer = [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)]
    shapes = [(vocabulary, width), *layer * layers, (width, vocabulary)]
    data = [_ids(vocabulary, batch, tokens), _ids(vocabulary, batch, tokens, seed=2)]
    return Program(_gpt_loss(heads), _arrays(*shapes), data)


def encoder() -> Program:
    """A Transformer encoder layer with layer norm and biases, regression."""
    import jax
    import jax.numpy as jnp

    def loss(weights: list, x: Any, y: Any) -> Any:
        qkv, out, up, bias, down, *norms = weights
        n, t, d = x.shape
        z = _norm(x, *norms[:2])
        q, k, v = jnp.moveaxis((z @ qkv).reshape(n, t, 3, 4, -1), 2, 0)
        mixed = jax.nn.softmax(jnp.einsum("nthd,nshd->nhts", q, k) / 4.0)
        x = x + jnp.einsum("nhts,nshd->nthd", mixed, v).reshape(n, t, d) @ out
        x = x + jax.nn.gelu(_norm(x, *norms[2:]) @ up + bias) @ down
        return jnp.square(x - y).mean()

    shapes = [(64, 192), (64, 64), (64, 256), (256,), (256, 64), *[(64,)] * 4]
    return Program(loss, _arrays(*shapes), _arrays((4, 32, 64), (4, 32, 64), seed=2))


def lstm() -> Program:
    """An LSTM over sixteen steps by scan."""
    import jax
    import jax.numpy as jnp

    def loss(weights: list, xs: Any, y: Any) -> Any:
        w, u, b, head = weights

        def step(carry: Any, x: Any) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(x @ w + h @ u + b, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((xs.shape[1], u.shape[0]))
        _, hs = jax.lax.scan(step, (zeros, zeros), xs)
        return jnp.square(hs @ head - y).mean()

    weights = _arrays((32, 256), (64, 256), (256,), (64, 8))
    return Program(loss, weights, _arrays((16, 16, 32), (16, 16, 8), seed=2))


def mixture() -> Program:
    """A dense mixture of experts: softmax over gates, all experts run."""
    import jax
    import jax.numpy as jnp

    def loss(weights: list, x: Any, y: Any) -> Any:
        gate, up, down = weights
        hidden = jax.nn.silu(jnp.einsum("nd,edh->neh", x, up))
        parts = jnp.einsum("neh,ehd->ned", hidden, down)
        mixed = (jax.nn.softmax(x @ gate)[..., None] * parts).sum(1)
        return jnp.square(mixed - y).mean()

    weights = _arrays((32, 4), (4, 32, 64), (4, 64, 32))
    return Program(loss, weights, _arrays((64, 32), (64, 32), seed=2))


def graph() -> Program:
    """Two rounds of messages over edges, added at their ends."""
    import jax
    import jax.numpy as jnp

    def loss(weights: list, nodes: Any, senders: Any, receivers: Any, y: Any) -> Any:
        for own, other in (weights[:2], weights[2:4]):
            sums = jax.ops.segment_sum(nodes[senders] @ other, receivers, len(nodes))
            nodes = jax.nn.relu(nodes @ own + sums)
        return jnp.square(nodes @ weights[4] - y).mean()

    weights = _arrays((32, 32), (32, 32), (32, 32), (32, 32), (32, 4))
    nodes, y = _arrays((100, 32), (100, 4), seed=2)
    edges = [_ids(100, 400), _ids(100, 400, seed=3)]
    return Program(loss, weights, [nodes, *edges, y])


def autoencoder() -> Program:
    """A variational one: reparametrised noise, KL, binary cross-entropy."""
    import jax
    import jax.numpy as jnp

    def loss(weights: list, x: Any, noise: Any) -> Any:
        e1, e2, d1, d2 = weights
        mean, spread = jnp.split(jnp.tanh(x @ e1) @ e2, 2, -1)
        z = mean + jnp.exp(0.5 * spread) * noise
        logits = jnp.tanh(z @ d1) @ d2
        kl = -0.5 * (1 + spread - jnp.square(mean) - jnp.exp(spread)).sum(-1)
        target = jax.nn.sigmoid(x)
        entropy = jax.nn.softplus(logits) - target * logits
        return (entropy.sum(-1) + kl).mean()

    weights = _arrays((196, 128), (128, 32), (16, 128), (128, 196))
    return Program(loss, weights, _arrays((64, 196), (64, 16), seed=2))


def ode() -> Program:
    """A neural ODE: sixteen steps of the classical Runge-Kutta rule."""
    import jax
    import jax.numpy as jnp

    def loss(weights: list, x: Any, y: Any) -> Any:
        w, b, head = weights
        h = 1 / 16

        def slope(x: Any) -> Any:
            return jnp.tanh(x @ w + b) @ head

        def step(x: Any, _: Any) -> Any:
            k1 = slope(x)
            k2 = slope(x + h / 2 * k1)
            k3 = slope(x + h / 2 * k2)
            return x + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(x + h * k3)), None

        end, _ = jax.lax.scan(step, x, length=16)
        return jnp.square(end - y).mean()

    weights = _arrays((16, 64), (64,), (64, 16))
    return Program(loss, weights, _arrays((64, 16), (64, 16), seed=2))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "gpt": gpt,
    "encoder": encoder,
    "lstm": lstm,
    "mixture": mixture,
    "graph": graph,
    "autoencoder": autoencoder,
    "ode": ode,
}
