"""A multi-layer perceptron that tells ten classes apart.

pcp export --torch examples/models/mlp.py:MLP --batch-size 32 -o mlp.mlir
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class MLP(nn.Module):
    """`images` [batch, features] float32, `labels` [batch] int64; the mean loss."""

    def __init__(self, features: int = 64, width: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.features = features
        self.net = nn.Sequential(
            nn.Linear(features, width),
            nn.GELU(),
            nn.Linear(width, width),
            nn.Tanh(),
            nn.Linear(width, classes),
        )

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.net(images), labels)

    def example_inputs(self, batch_size: int, block_size: int) -> tuple[Tensor, Tensor]:
        """Inputs of the right shapes, for export; `block_size` has no meaning here."""
        images = torch.zeros(batch_size, self.features)
        return images, torch.zeros(batch_size, dtype=torch.int64)
