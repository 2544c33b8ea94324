"""A GPT, a Llama-style block and a convolutional net as JAX users write them.

Each loss takes (params, inputs, targets); `CASES` has example arguments.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

VOCABULARY, WIDTH, HEADS, GROUPS, TIME, BATCH = 50, 16, 4, 2, 8, 3
SIZE = WIDTH // HEADS
Params = dict[str, Any]


def _cross_entropy(logits, targets):
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1)
    return -chosen.mean()


def _layer_norm(x, scale, shift):
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.var(x, -1, keepdims=True)
    return centred * lax.rsqrt(variance + 1e-5) * scale + shift


def _attention(q, k, v):
    """[batch, time, heads, size] each; causal."""
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(q.shape[-1])
    causal = jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf))
    return jnp.einsum("bhts,bshd->bthd", weights, v)


def gpt(params: Params, ids, targets):
    """Learned positions, layer norms, exact GELU, a tied head."""
    x = params["token"][ids] + params["position"][: ids.shape[1]]

    for p in params["layers"]:
        y = _layer_norm(x, p["s1"], p["b1"])
        q, k, v = jnp.split((y @ p["qkv"]).reshape(*ids.shape, HEADS, -1), 3, -1)
        x = x + _attention(q, k, v).reshape(*ids.shape, WIDTH) @ p["out"]
        y = _layer_norm(x, p["s2"], p["b2"])
        x = x + jax.nn.gelu(y @ p["up"], approximate=False) @ p["down"]
    return _cross_entropy(x @ params["token"].T, targets)


def _rms_norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale


def _rotate(x):
    """Rotary embedding of [batch, time, heads, size]."""
    frequencies = 10000.0 ** (-jnp.arange(0, SIZE, 2) / SIZE)
    angles = jnp.arange(x.shape[1])[:, None] * frequencies
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    even, odd = x[..., ::2], x[..., 1::2]
    turned = jnp.stack([even * cos - odd * sin, odd * cos + even * sin], -1)
    return turned.reshape(x.shape)


def llama(params: Params, ids, targets):
    """RMSNorm, RoPE on strided slices, grouped-query attention, SwiGLU."""
    x = params["token"][ids]
    y = _rms_norm(x, params["norm1"])
    q = (y @ params["q"]).reshape(*ids.shape, HEADS, SIZE)
    k, v = ((y @ params[n]).reshape(*ids.shape, GROUPS, SIZE) for n in ("k", "v"))
    k, v = (jnp.repeat(part, HEADS // GROUPS, axis=2) for part in (_rotate(k), v))
    x = x + _attention(_rotate(q), k, v).reshape(*ids.shape, WIDTH) @ params["out"]
    y = _rms_norm(x, params["norm2"])
    x = x + (jax.nn.silu(y @ params["gate"]) * (y @ params["up"])) @ params["down"]
    return _cross_entropy(x @ params["head"], targets)


def cnn(params: Params, images, labels):
    """NHWC: strided and grouped convolutions, max and mean pooling."""
    dims = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(
        images, params["c1"], (1, 1), "SAME", dimension_numbers=dims
    )
    x = jax.nn.relu(x + params["b1"])
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    x = lax.conv_general_dilated(
        *(x, params["c2"], (2, 2), "SAME"),
        dimension_numbers=dims,
        feature_group_count=4,
    )
    x = jnp.tanh(x).mean((1, 2))
    return _cross_entropy(x @ params["head"], labels)


def _arrays(shapes: Any) -> Any:
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda shape: (0.3 * random.normal(size=shape)).astype(np.float32),
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def _tokens() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    ids, targets = random.integers(0, VOCABULARY, (2, BATCH, TIME), np.int32)
    return ids, targets


def _cases() -> dict[str, tuple[Callable[..., Any], Params, tuple[np.ndarray, ...]]]:
    w, hidden = WIDTH, 2 * WIDTH
    layer = {
        "qkv": (w, 3 * w),
        "out": (w, w),
        "up": (w, hidden),
        "down": (hidden, w),
        **{name: (w,) for name in ("s1", "b1", "s2", "b2")},
    }
    gpt_shapes = {
        "token": (VOCABULARY, w),
        "position": (TIME, w),
        "layers": [layer, layer],
    }
    llama_shapes = {
        "token": (VOCABULARY, w),
        "head": (w, VOCABULARY),
        **{name: (w,) for name in ("norm1", "norm2")},
        **{name: (w, w) for name in ("q", "out")},
        **{name: (w, GROUPS * SIZE) for name in ("k", "v")},
        **{name: (w, hidden) for name in ("gate", "up")},
        "down": (hidden, w),
    }
    cnn_shapes = {
        "c1": (3, 3, 3, 8),
        "b1": (8,),
        "c2": (3, 3, 2, 16),
        "head": (16, 10),
    }
    random = np.random.default_rng(2)
    images = random.normal(size=(4, 9, 10, 3)).astype(np.float32)
    labels = random.integers(0, 10, 4, np.int32)
    return {
        "gpt": (gpt, _arrays(gpt_shapes), _tokens()),
        "llama": (llama, _arrays(llama_shapes), _tokens()),
        "cnn": (cnn, _arrays(cnn_shapes), (images, labels)),
    }


CASES = _cases()
