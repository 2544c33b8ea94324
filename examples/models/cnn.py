"""A small convolutional net for 16x16 images: strides, padding, groups, pooling.

pcp export --torch examples/models/cnn.py:CNN --batch-size 32 -o cnn.mlir
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class CNN(nn.Module):
    """`images` [batch, channels, 16, 16], `labels` [batch]; the mean loss."""

    def __init__(self, channels: int = 3, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.channels = channels
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1),
            nn.GroupNorm(4, width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, stride=2, padding=1, groups=width),
            nn.Conv2d(width, 2 * width, 1),
            nn.SiLU(),
            nn.AvgPool2d(2),
        )
        self.head = nn.Linear(2 * width * 4, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(self.features(images).flatten(1))
        return functional.cross_entropy(scores, labels)

    def example_inputs(self, batch_size: int, block_size: int) -> tuple[Tensor, Tensor]:
        """Inputs of the right shapes, for export; `block_size` has no meaning here."""
        images = torch.zeros(batch_size, self.channels, 16, 16)
        return images, torch.zeros(batch_size, dtype=torch.int64)
