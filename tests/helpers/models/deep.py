"""Models of several layers in JAX: a Llama-like decoder, as a loop or not, and a ViT.

Each gives a loss, its parameters by name, and its batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Case = tuple[Callable[..., Any], dict[str, jax.Array], list[jax.Array]]

HEADS = 4


def _weights(**shapes: Sequence[int]) -> dict[str, jax.Array]:
    random = np.random.default_rng(0)
    return {
        name: jnp.asarray(random.normal(size=shape) / 8, jnp.float32)
        for name, shape in shapes.items()
    }


def _cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
    return -picked.mean()


def _rms(x: jax.Array, gain: jax.Array) -> jax.Array:
    return x * lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * gain


def _rotated(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos + b * sin, b * cos - a * sin], -1)


def _layer(x: jax.Array, w: dict[str, jax.Array], cos: Any, sin: Any) -> jax.Array:
    """Grouped queries, rotary positions, a causal softmax, SwiGLU."""
    n, t, d = x.shape
    y = _rms(x, w["norm1"])
    q = _rotated((y @ w["q"]).reshape(n, t, HEADS, -1), cos, sin)
    k, v = ((y @ w[name]).reshape(n, t, HEADS // 2, -1) for name in "kv")
    k, v = jnp.repeat(_rotated(k, cos, sin), 2, 2), jnp.repeat(v, 2, 2)
    scores = jnp.einsum("nthd,nshd->nhts", q, k) / np.sqrt(d // HEADS)
    mask = jnp.tril(jnp.ones((t, t), bool))
    mixed = jax.nn.softmax(jnp.where(mask, scores, -1e9))
    x = x + jnp.einsum("nhts,nshd->nthd", mixed, v).reshape(n, t, d) @ w["out"]
    y = _rms(x, w["norm2"])
    return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]


def decoder(layers: int, loop: str, width: int = 64, tokens: int = 64) -> Case:
    """`loop` is how the layers are spelt: "unrolled", "scan" or "while"."""
    hidden, vocabulary, kv = 2 * width, 128, width // 2
    one: dict[str, Sequence[int]] = {
        "q": (width, width),
        "k": (width, kv),
        "v": (width, kv),
    }
    one |= {"out": (width, width), "gate": (width, hidden), "up": (width, hidden)}
    one |= {"down": (hidden, width), "norm1": (width,), "norm2": (width,)}
    outer: dict[str, Sequence[int]] = {
        "token": (vocabulary, width),
        "head": (width, vocabulary),
    }
    outer["norm"] = (width,)
    if loop == "unrolled":
        shapes = {f"{name}.{i}": s for i in range(layers) for name, s in one.items()}
    else:
        shapes = {name: (layers, *s) for name, s in one.items()}

    def through(x: jax.Array, w: dict[str, jax.Array], cos: Any, sin: Any) -> jax.Array:
        if loop == "unrolled":
            for i in range(layers):
                x = _layer(x, {name: w[f"{name}.{i}"] for name in one}, cos, sin)
            return x
        stacked = {name: w[name] for name in one}
        if loop == "scan":
            return lax.scan(lambda x, w: (_layer(x, w, cos, sin), None), x, stacked)[0]

        def step(state: Any) -> Any:
            i, x = state
            w = {
                n: lax.dynamic_index_in_dim(s, i, 0, False) for n, s in stacked.items()
            }
            return i + 1, _layer(x, w, cos, sin)

        return lax.while_loop(lambda state: state[0] < layers, step, (0, x))[1]

    def loss(w: dict[str, jax.Array], ids: jax.Array, targets: jax.Array) -> jax.Array:
        half = width // HEADS // 2
        rates = 10000.0 ** (-jnp.arange(half) / half)
        angles = (jnp.arange(tokens)[:, None] * rates)[None, :, None, :]
        x = through(w["token"][ids], w, jnp.cos(angles), jnp.sin(angles))
        return _cross_entropy(_rms(x, w["norm"]) @ w["head"], targets)

    ids = jnp.zeros((4, tokens), jnp.int32)
    return loss, _weights(**outer, **shapes), [ids, ids]


def _norm(x: jax.Array, gain: jax.Array, shift: jax.Array) -> jax.Array:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * gain + shift


def vit(layers: int, width: int = 64, image: int = 32, patch: int = 4) -> Case:
    """Patches by a strided convolution, a class token, pre-norm encoder layers."""
    one: dict[str, Sequence[int]] = {
        "g1": (width,),
        "s1": (width,),
        "qkv": (width, 3 * width),
    }
    one |= {"out": (width, width), "g2": (width,), "s2": (width,)}
    one |= {"up": (width, 4 * width), "down": (4 * width, width)}
    tokens = (image // patch) ** 2 + 1
    shapes: dict[str, Sequence[int]] = {
        "stem": (patch, patch, 3, width),
        "position": (tokens, width),
    }
    shapes |= {"class": (width,), "g": (width,), "s": (width,), "head": (width, 10)}
    shapes |= {f"{name}.{i}": s for i in range(layers) for name, s in one.items()}

    def loss(w: dict[str, jax.Array], x: jax.Array, labels: jax.Array) -> jax.Array:
        dims = ("NHWC", "HWIO", "NHWC")
        step = (patch, patch)
        x = lax.conv_general_dilated(
            x, w["stem"], step, "VALID", dimension_numbers=dims
        )
        n = len(x)
        first = jnp.broadcast_to(w["class"], (n, 1, width))
        x = jnp.concatenate([first, x.reshape(n, -1, width)], 1) + w["position"]
        for i in range(layers):
            g1, s1, qkv, out, g2, s2, up, down = (w[f"{name}.{i}"] for name in one)
            parts = (_norm(x, g1, s1) @ qkv).reshape(n, tokens, 3, HEADS, -1)
            q, k, v = jnp.moveaxis(parts, 2, 0)
            mixed = jax.nn.softmax(jnp.einsum("nthd,nshd->nhts", q, k) / 4.0)
            x = x + jnp.einsum("nhts,nshd->nthd", mixed, v).reshape(x.shape) @ out
            x = x + jax.nn.gelu(_norm(x, g2, s2) @ up) @ down
        return _cross_entropy(_norm(x, w["g"], w["s"])[:, 0] @ w["head"], labels)

    images = jnp.zeros((8, image, image, 3))
    return loss, _weights(**shapes), [images, jnp.zeros(8, jnp.int32)]
