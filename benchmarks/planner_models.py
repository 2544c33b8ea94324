"""Losses in JAX for benchmarks/planner.py, as StableHLO with names and roles."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pcp.dialect.bindings import ir
from pcp.dialect.context import parse
from pcp.passes.core.functions import Port


def _weights(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def mlp(layers: int, width: int, batch: int) -> str:
    """A regression by `layers` products with tanh between them."""
    params = {f"layer{i}": _weights(width, width) for i in range(layers)}

    def loss(params: Any, x: Any, y: Any) -> Any:
        for i in range(layers):
            x = jnp.tanh(x @ params[f"layer{i}"])
        return jnp.mean((x - y) ** 2)

    data = [_weights(batch, width)] * 2
    return _text(loss, params, data, ["x", "y"])


def gpt(
    layers: int,
    width: int,
    batch: int,
    time: int,
    vocabulary: int = 512,
    scanned: bool = False,
) -> str:
    """A decoder-only language model with separate projections.

    `scanned`: its layers are a scan over stacked weights.
    """
    heads = 4
    layer = {n: _weights(width, width) for n in ("q", "k", "v", "out")}
    layer |= {"up": _weights(width, 4 * width), "down": _weights(4 * width, width)}
    layer |= {"norm1": _weights(width), "norm2": _weights(width)}
    stacked = {n: _weights(layers, *w.shape) for n, w in layer.items()}
    params = {
        "blocks": stacked if scanned else [layer] * layers,
        "head": _weights(width, vocabulary),
        "token": _weights(vocabulary, width),
    }

    def norm(x: Any, gain: Any) -> Any:
        return x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6) * gain

    def through(x: Any, block: Any) -> Any:
        mask = jnp.tril(jnp.ones((time, time), bool))
        normed = norm(x, block["norm1"])
        shape = (*x.shape[:2], heads, -1)
        q, k, v = ((normed @ block[n]).reshape(shape) for n in "qkv")
        scores = jnp.einsum("bthd,bshd->bhts", q, k) / np.sqrt(width // heads)
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        mixed = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape)
        x = x + mixed @ block["out"]
        return x + jax.nn.gelu(norm(x, block["norm2"]) @ block["up"]) @ block["down"]

    def loss(params: Any, ids: Any, targets: Any) -> Any:
        x = params["token"][ids]
        if scanned:
            x, _ = jax.lax.scan(lambda x, w: (through(x, w), None), x, params["blocks"])
        else:
            for block in params["blocks"]:
                x = through(x, block)
        logits = jax.nn.log_softmax(x @ params["head"])
        return -jnp.take_along_axis(logits, targets[..., None], -1).mean()

    ids = jax.ShapeDtypeStruct((batch, time), jnp.int32)
    return _text(loss, params, [ids, ids], ["ids", "targets"])


def _text(loss: Any, params: Any, data: list[Any], names: list[str]) -> str:
    lowered = jax.jit(loss, keep_unused=True).lower(params, *data)
    module = parse(lowered.as_text())
    paths = jax.tree_util.tree_flatten_with_path(params)[0]
    ports = [(".".join(map(_key, path)), "param") for path, _ in paths]
    ports += [(name, "data") for name in names]
    with module.context:
        main = module.body.operations[0].operation
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(
            [Port(name, role, None).attributes() for name, role in ports]
        )
    return str(module)


def _key(entry: Any) -> str:
    return str(getattr(entry, "key", getattr(entry, "idx", entry)))
