"""torch with a program's random numbers: those that follow from its key, by JAX."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


def uniform(ordinal: int, shape: Sequence[int], key: np.ndarray) -> Tensor:
    """What a program draws from a key for its random op of that ordinal, by JAX."""
    own = jax.random.fold_in(jax.random.wrap_key_data(jax.numpy.asarray(key)), ordinal)
    bits = np.asarray(jax.random.bits(own, tuple(shape), "uint32"))
    return torch.tensor((bits >> 8).astype(np.float32) * np.float32(2.0**-24))


@contextmanager
def drawing(key: np.ndarray) -> Iterator[None]:
    """torch draws what a program draws from this key: op after op, as they are called.

    Normals are Box and Muller's of two uniform numbers; dropout keeps where the number
    is not below its rate. Attention is written out, and drops its weights.
    """
    ordinals = iter(range(1_000))

    def rand(*shape: Any, **_: Any) -> Tensor:
        return uniform(next(ordinals), shape, key)

    def randn_like(x: Tensor, **_: Any) -> Tensor:
        u, v = uniform(next(ordinals), (2, *x.shape), key).double()
        return (torch.sqrt(-2 * torch.log1p(-u)) * torch.cos(2 * torch.pi * v)).float()

    def dropout(x: Tensor, p: float, training: bool, inplace: bool = False) -> Tensor:
        if not training or p == 0:
            return x
        return x * ((uniform(next(ordinals), x.shape, key) >= p) / (1 - p))

    def attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> Tensor:
        scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
        if is_causal:
            allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            scores = scores.masked_fill(~allowed, -torch.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return dropout(torch.softmax(scores, -1), dropout_p, training=True) @ v

    ops = {"dropout": dropout, "scaled_dot_product_attention": attention}
    numbers = {"rand": rand, "randn_like": randn_like}
    with patch.multiple(torch, **numbers), patch.multiple(functional, **ops):
        yield
