"""A U-Net that learns to take noise out of pictures: the noise is drawn in its loss."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

BATCH, SIZE, WIDTH = 2, 8, 8


class Denoised(NamedTuple):
    """The mean squared error, and what was taken for the noise."""

    loss: Tensor
    noise: Tensor


class Residual(nn.Module):
    """Two normalized convolutions beside a straight way; the time is added between."""

    def __init__(self, width: int, out: int, dropped: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, width), nn.GroupNorm(2, out)
        self.first = nn.Conv2d(width, out, 3, padding=1)
        self.second = nn.Conv2d(out, out, 3, padding=1)
        self.time, self.straight = nn.Linear(WIDTH, out), nn.Conv2d(width, out, 1)
        self.drop = nn.Dropout(dropped)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = (
            self.first(functional.silu(self.norm1(x)))
            + self.time(time)[..., None, None]
        )
        h = self.second(self.drop(functional.silu(self.norm2(h))))
        return h + self.straight(x)


class Unet(nn.Module):
    """Down by 2, attention over the pixels there, up again beside what was above.

    The objective is that of Ho et al., arXiv:2006.11239: pictures are mixed with noise
    by a time of their own, and the noise is what the model is to find.
    """

    def __init__(self, dropped: float = 0.1) -> None:
        super().__init__()
        self.time = nn.Sequential(
            nn.Linear(4, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)
        )
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.down1 = Residual(WIDTH, WIDTH, dropped)
        self.shrink = nn.Conv2d(WIDTH, 2 * WIDTH, 3, stride=2, padding=1)
        self.middle = Residual(2 * WIDTH, 2 * WIDTH, dropped)
        self.mix = nn.MultiheadAttention(2 * WIDTH, 2, batch_first=True)
        self.grow = nn.Conv2d(2 * WIDTH, WIDTH, 3, padding=1)
        self.up1 = Residual(2 * WIDTH, WIDTH, dropped)
        self.norm, self.head = nn.GroupNorm(2, WIDTH), nn.Conv2d(WIDTH, 3, 3, padding=1)

    def predicted(self, x: Tensor, times: Tensor) -> Tensor:
        """The noise in a mixture, by the times of its pictures in [0, 1)."""
        angles = times[:, None] * times.new_tensor([1.0, 10.0])
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        above = self.down1(self.stem(x), time)
        h = self.middle(self.shrink(above), time)
        rows = h.flatten(2).transpose(1, 2)
        rows = rows + self.mix(rows, rows, rows, need_weights=False)[0]
        h = rows.transpose(1, 2).reshape(h.shape)
        h = self.grow(functional.interpolate(h, scale_factor=2.0, mode="nearest"))
        h = self.up1(torch.cat([h, above], 1), time)
        return self.head(functional.silu(self.norm(h)))

    def forward(self, pictures: Tensor) -> Denoised:
        noise = torch.randn_like(pictures)
        times = torch.rand(len(pictures))
        angle = times[:, None, None, None] * (torch.pi / 2)
        found = self.predicted(pictures * angle.cos() + noise * angle.sin(), times)
        return Denoised((found - noise).square().mean(), found)


def model() -> Unet:
    """In training mode, with seeded weights."""
    torch.manual_seed(0)
    return Unet().train()


def pictures() -> Tensor:
    """A batch."""
    draw = torch.Generator().manual_seed(1)
    return torch.randn((BATCH, 3, SIZE, SIZE), generator=draw)
