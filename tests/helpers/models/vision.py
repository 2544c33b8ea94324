"""Convolutional models in JAX, small: what torchvision and diffusers users write."""

import jax
import jax.numpy as jnp
from helpers.models.jax_small import _cross_entropy, _layer_norm, _weights
from helpers.oracles.jax_gradients import Case, array, integers
from jax import lax

DIMS = ("NHWC", "HWIO", "NHWC")
IMAGES, LABELS = array(2, 8, 8, 3), integers(2, high=4)
POINTS = array(2, 5, 2, low=-0.9, high=0.9, seed=9)


def _conv(x, w, stride=1, dilation=1, groups=1, padding="SAME"):
    return lax.conv_general_dilated(
        x,
        w,
        (stride, stride),
        padding,
        rhs_dilation=(dilation, dilation),
        dimension_numbers=DIMS,
        feature_group_count=groups,
    )


def _up(x, w):
    """A transposed convolution of stride two."""
    return lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=DIMS)


def _batch_norm(x, g, b):
    """By the statistics of the batch, as while training."""
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return (x - mean) * lax.rsqrt(variance + 1e-5) * g + b


def _group_norm(x, groups, g, b):
    n, h, w, c = x.shape
    y = x.reshape(n, h, w, groups, c // groups)
    mean = y.mean((1, 2, 4), keepdims=True)
    variance = y.var((1, 2, 4), keepdims=True)
    return ((y - mean) * lax.rsqrt(variance + 1e-5)).reshape(x.shape) * g + b


def _pool(x, window, stride):
    sizes, strides = (1, window, window, 1), (1, stride, stride, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, sizes, strides, "SAME")


def resnet(stem, g, b, first, second, g2, b2, head, images, labels):
    """A strided stem, overlapping pooling, one residual block, mean pooling."""
    x = _pool(jax.nn.softplus(_batch_norm(_conv(images, stem, 2), g, b)), 3, 2)
    y = jnp.tanh(_batch_norm(_conv(x, first), g, b))
    x = jnp.tanh(x + _batch_norm(_conv(y, second), g2, b2))
    return _cross_entropy(x.mean((1, 2)) @ head, labels)


def unet(down, middle, up, last, images):
    """Down, up by a transposed convolution, and a skip; the image's own pixels."""
    skip = jax.nn.silu(_conv(images, down))
    deep = jax.nn.silu(_conv(skip, middle, 2))
    joined = jnp.concatenate([skip, _up(deep, up)], -1)
    return jnp.square(_conv(joined, last) - images).mean()


def mobilenet(expand, depthwise, project, squeeze, excite, head, images, labels):
    """An inverted residual: 1x1, depthwise 3x3, squeeze and excite, 1x1."""
    x = jax.nn.hard_swish(_conv(images, expand))
    x = jax.nn.hard_swish(_conv(x, depthwise, groups=x.shape[-1]))
    gate = jax.nn.sigmoid(jnp.tanh(x.mean((1, 2)) @ squeeze) @ excite)
    x = _conv(x * gate[:, None, None], project) + images
    return _cross_entropy(x.mean((1, 2)) @ head, labels)


def wavenet(first, second, gate, out, signal):
    """Causal dilated convolutions with gates; the next sample."""

    def causal(x, w, dilation):
        padding = [((w.shape[0] - 1) * dilation, 0)]
        return lax.conv_general_dilated(
            *(x, w, (1,), padding),
            rhs_dilation=(dilation,),
            dimension_numbers=("NWC", "WIO", "NWC"),
        )

    x = jnp.tanh(causal(signal, first, 1))
    x = jnp.tanh(causal(x, second, 2)) * jax.nn.sigmoid(causal(x, gate, 2))
    return jnp.square(causal(x, out, 4)[:, :-1] - signal[:, 1:]).mean()


def vit(patch, position, g, b, qkv, out, w1, w2, head, images, labels):
    """Patches by a strided convolution, one encoder block, the mean token."""
    x = _conv(images, patch, 4, padding="VALID").reshape(2, 4, -1) + position
    q, k, v = jnp.split(_layer_norm(x, g, b) @ qkv, 3, -1)
    weights = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k))
    x = x + jnp.einsum("bts,bsd->btd", weights, v) @ out
    x = x + jax.nn.gelu(_layer_norm(x, g, b) @ w1) @ w2
    return _cross_entropy(x.mean(1) @ head, labels)


def grid_sample(offsets, images, points):
    """Bilinear sampling at learnt places: a gather at floored coordinates."""
    where = (points + offsets + 1) * 3.5
    low = jnp.floor(where)
    part = where - low
    low = low.astype(jnp.int32)
    batch = jnp.arange(2)[:, None]
    total = 0.0
    for dy in (0, 1):
        for dx in (0, 1):
            y, x = (jnp.clip(low[..., i] + d, 0, 7) for i, d in ((0, dy), (1, dx)))
            weight = jnp.where(dy, part[..., 0], 1 - part[..., 0])
            weight *= jnp.where(dx, part[..., 1], 1 - part[..., 1])
            total += images[batch, y, x] * weight[..., None]
    return jnp.square(total - 0.3).sum()


def diffusion(first, time, second, noise, images):
    """A denoiser with a time embedding and group norm; the loss is on the noise."""
    t = jnp.array([0.2, 0.7])
    angles = t[:, None] * jnp.exp(-jnp.arange(4.0))
    embedded = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1) @ time
    mix = jnp.cos(t)[:, None, None, None]
    noisy = mix * images + jnp.sqrt(1 - mix**2) * noise
    x = _conv(noisy, first) + embedded[:, None, None]
    x = jax.nn.silu(_group_norm(x, 2, jnp.ones(8), jnp.zeros(8)))
    return jnp.square(_conv(x, second) - noise).mean()


def autoencoder(encoder, mean, spread, decoder, drawn, images):
    """A variational autoencoder: reparametrised sample, KL to the normal."""
    h = jnp.tanh(images.reshape(2, -1) @ encoder)
    mu, log_variance = h @ mean, h @ spread
    z = mu + jnp.exp(0.5 * log_variance) * drawn
    back = jax.nn.sigmoid(z @ decoder)
    kl = -0.5 * (1 + log_variance - mu**2 - jnp.exp(log_variance)).sum(-1)
    return jnp.square(back - images.reshape(2, -1)).sum(-1).mean() + kl.mean()


def style(first, second, images):
    """A Gram-matrix loss: two convolutions, features against features."""
    x = jnp.tanh(_conv(jnp.tanh(_conv(images, first)), second, dilation=2))
    flat = x.reshape(2, -1, x.shape[-1])
    gram = jnp.einsum("bnc,bnd->bcd", flat, flat) / flat.shape[1]
    return jnp.square(gram - jnp.eye(x.shape[-1])).sum()


PROGRAMS = [
    Case(
        "resnet",
        resnet,
        (
            *_weights((3, 3, 3, 4)),
            *(array(4, low=0.5, high=1.5), array(4)),
            *_weights((3, 3, 4, 4), (3, 3, 4, 4), seed=4),
            *(array(4, low=0.5, high=1.5, seed=2), array(4, seed=3)),
            *_weights((4, 4), seed=7),
            *(IMAGES, LABELS),
        ),
    ),
    Case(
        "unet",
        unet,
        (*_weights((3, 3, 3, 4), (3, 3, 4, 6), (2, 2, 6, 4), (3, 3, 8, 3)), IMAGES),
    ),
    Case(
        "mobilenet",
        mobilenet,
        (
            *_weights(
                *((1, 1, 3, 6), (3, 3, 1, 6), (1, 1, 6, 3), (6, 2), (2, 6), (3, 4))
            ),
            *(IMAGES, LABELS),
        ),
    ),
    Case(
        "wavenet",
        wavenet,
        (*_weights((2, 2, 4), (2, 4, 4), (2, 4, 4), (2, 4, 2)), array(2, 12, 2)),
    ),
    Case(
        "vit",
        vit,
        (
            *_weights((4, 4, 3, 8), (4, 8)),
            *(array(8, low=0.5, high=1.5), array(8)),
            *_weights((8, 24), (8, 8), (8, 16), (16, 8), (8, 4), seed=5),
            *(IMAGES, LABELS),
        ),
    ),
    Case("grid_sample", grid_sample, (*_weights((2, 5, 2)), IMAGES, POINTS)),
    Case(
        "diffusion",
        diffusion,
        (
            *_weights((3, 3, 3, 8), (8, 8), (3, 3, 8, 3)),
            *(array(2, 8, 8, 3, seed=5), IMAGES),
        ),
    ),
    Case(
        "variational_autoencoder",
        autoencoder,
        (
            *_weights((192, 8), (8, 3), (8, 3), (3, 192)),
            *(array(2, 3, seed=5), IMAGES),
        ),
    ),
    Case("style", style, (*_weights((3, 3, 3, 4), (3, 3, 4, 4)), IMAGES)),
]
