"""A Llama-style language model: RMSNorm, RoPE, grouped-query attention, SwiGLU.

    pcp export --torch examples/models/llama_block.py:Llama \
        --batch-size 8 --block-size 16 -o llama.mlir
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """Scale by the root mean square; no mean is subtracted."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        square = x.pow(2).mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(square + self.epsilon)


def rotary(size: int, length: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each position's angles, each [length, size]."""
    frequencies = base ** (-torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(length), frequencies)
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of [batch, heads, time, size]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class Attention(nn.Module):
    """Causal attention in which `heads / groups` queries share a key and value."""

    cos: Tensor
    sin: Tensor

    def __init__(self, width: int, heads: int, groups: int, block_size: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, groups * self.size, bias=False)
        self.value = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        cos, sin = rotary(self.size, block_size)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        query = self.query(x).view(batch, time, self.heads, self.size)
        key, value = (
            part(x).view(batch, time, self.groups, self.size).transpose(1, 2)
            for part in (self.key, self.value)
        )
        cos, sin = self.cos[:time], self.sin[:time]
        query = rotate(query.transpose(1, 2), cos, sin)
        mixed = functional.scaled_dot_product_attention(
            query, rotate(key, cos, sin), value, is_causal=True, enable_gqa=True
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    """Attention and SwiGLU, each normalised first and added back."""

    def __init__(self, width: int, heads: int, groups: int, block_size: int) -> None:
        super().__init__()
        hidden = 2 * width
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.attention = Attention(width, heads, groups, block_size)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """`ids` and `targets` are [batch, time] int64; embedding and head are tied."""

    def __init__(
        self,
        block_size: int = 16,
        vocabulary: int = 256,
        width: int = 32,
        heads: int = 4,
        groups: int = 2,
        layers: int = 1,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, groups, block_size) for _ in range(layers)
        )
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        self.head.weight = self.token.weight

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.token(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
