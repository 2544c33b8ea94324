"""Programs with branches, shared maxima, norms over groups, and narrow floats."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers.models.jax_small import PROGRAMS as MODELS
from helpers.models.jax_small import _conv, _cross_entropy, _weights
from helpers.oracles.jax_gradients import Case, array, integers
from jax import lax


def graph_max(w1, w2, features, source, target, wanted):
    """Message passing by segment maxima; equal messages tie, one node gets none."""
    x = features
    for w in (w1, w2):
        best = jax.ops.segment_max(x[source], target, x.shape[0])
        x = jnp.tanh(jnp.where(jnp.isfinite(best), best, 0.0) @ w)
    return jnp.square(x - wanted).mean()


def _normalized(x, axes):
    centred = x - x.mean(axes, keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean(axes, keepdims=True) + 1e-5)


def group_norm(w1, scale, shift, w2, images, labels):
    """Convolutions with group normalization, as small-batch vision models have."""
    x = _conv(images, w1)
    grouped = x.reshape(*x.shape[:3], 2, -1)
    x = _normalized(grouped, (1, 2, 4)).reshape(x.shape) * scale + shift
    return _cross_entropy(jax.nn.silu(x).mean((1, 2)) @ w2, labels)


def instance_norm(w1, w2, images):
    """A stylizing layer: each image's channels are normalized on their own."""
    x = jnp.tanh(_normalized(_conv(images, w1), (1, 2)))
    return jnp.square(_normalized(_conv(x, w2), (1, 2)) - images).mean()


def adaptive_loss(w1, w2, x, target):
    """Which loss is used depends on the error: lax.cond over a differentiated value."""
    error = jnp.tanh(x @ w1) @ w2 - target
    far = jnp.abs(error).mean() > 0.5
    robust = lax.cond(
        far, lambda e: jnp.abs(e).mean(), lambda e: jnp.square(e).mean(), error
    )
    return robust + lax.switch(
        jnp.argmax(jnp.abs(w2).sum(0)),
        [lambda w: jnp.square(w).sum(), lambda w: jnp.cos(w).sum(), jnp.sum],
        w1,
    )


GPT = next(case for case in MODELS if case.name == "gpt")


def narrow_gpt(*arguments):
    """The GPT with weights and all products in bf16; the loss in f32."""
    narrow = [
        x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x
        for x in arguments
    ]
    return GPT.fn(*narrow).astype(jnp.float32)


SOURCE, TARGET = integers(12, high=5), integers(12, high=4, seed=1)
IMAGES, LABELS = array(2, 6, 6, 3), integers(2, high=4)

PROGRAMS = [
    Case(
        "graph_max",
        graph_max,
        (
            *_weights((4, 4), (4, 4), seed=3),
            np.round(array(5, 4)),
            *(SOURCE, TARGET, array(5, 4)),
        ),
    ),
    Case(
        "group_norm",
        group_norm,
        (
            *_weights((3, 3, 3, 4)),
            *(array(4, low=0.5, high=1.5), array(4)),
            *_weights((4, 4), seed=4),
            *(IMAGES, LABELS),
        ),
    ),
    Case(
        "instance_norm",
        instance_norm,
        (*_weights((3, 3, 3, 4), (3, 3, 4, 3)), IMAGES),
    ),
    Case(
        "adaptive_loss",
        adaptive_loss,
        (*_weights((4, 6), (6, 3)), array(5, 4), array(5, 3)),
    ),
    # Of the largest entry of each gradient: bf16 has 8 bits, and jax sums in it.
    Case("narrow_gpt", narrow_gpt, GPT.args, tolerance=5e-2),
]
