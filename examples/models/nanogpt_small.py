"""A byte-level GPT: two layers, width 64, four heads, context 32.

The vocabulary is the 256 byte values, so any text trains it as it is. Called
with token ids and targets it returns the mean cross entropy in nats.

    pcp export --torch examples/models/nanogpt_small.py:GPT \
        --batch-size 64 --block-size 32 -o examples/models/nanogpt_small.mlir

`megatron` is a wider one that `examples/megatron.json` cuts between heads.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention; `x` and the result are [batch, time, width].

    The rows of `qkv` are all queries, all keys, all values; with `by_head`, as
    Megatron-LM has them, each head's query, key and value.
    """

    future: Tensor

    def __init__(
        self, width: int, heads: int, block_size: int, by_head: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.by_head = heads, by_head
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)
        future = torch.ones(block_size, block_size).triu(1).bool()
        self.register_buffer("future", future, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        heads = (batch, time, self.heads, width // self.heads)
        if self.by_head:
            parts = self.qkv(x).view(*heads[:3], 3, heads[3]).unbind(3)
        else:
            parts = (part.view(heads) for part in self.qkv(x).split(width, -1))
        query, key, value = (part.transpose(1, 2) for part in parts)
        scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(self.future[:time, :time], float("-inf"))
        mixed = scores.softmax(-1) @ value
        return self.projection(mixed.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    """Attention and a feed-forward net, each normalised first and added back."""

    def __init__(
        self, width: int, heads: int, block_size: int, by_head: bool = False
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, block_size, by_head)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.relu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """`ids` and `targets` are [batch, time] int64; the result is the mean loss."""

    def __init__(
        self,
        block_size: int = 32,
        vocabulary: int = 256,
        width: int = 64,
        heads: int = 4,
        layers: int = 2,
        by_head: bool = False,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList(
            Block(width, heads, block_size, by_head) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def logits(self, ids: Tensor) -> Tensor:
        """[batch, time, vocabulary] scores of the next byte."""
        x = self.token(ids) + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        logits = self.logits(ids)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def megatron(block_size: int = 32) -> GPT:
    """So wide that a sum of activations costs less than gathering a weight."""
    return GPT(block_size, vocabulary=1024, width=512, heads=8, by_head=True)
