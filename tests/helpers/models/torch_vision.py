"""Stems and blocks of convolutional models, as PyTorch users write them.

Each is small, keeps its own layers (strides, paddings, norms, up-sampling), and comes
with a batch of images. The result is a loss that weighs every output pixel otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Make = Callable[[], nn.Module]


class BatchNorm(nn.Module):
    """Normalised by the statistics of the batch, as while training; none are kept."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, channels))
        self.bias = nn.Parameter(torch.linspace(-0.2, 0.3, channels))

    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(
            x, None, None, self.weight, self.bias, training=True
        )


class ChannelNorm(nn.Module):
    """Layer norm over the channels of an image in NCHW, as ConvNeXt has it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, channels))
        self.bias = nn.Parameter(torch.linspace(-0.2, 0.3, channels))

    def forward(self, x: Tensor) -> Tensor:
        y = x.permute(0, 2, 3, 1)
        y = functional.layer_norm(y, self.weight.shape, self.weight, self.bias, 1e-6)
        return y.permute(0, 3, 1, 2)


def conv(given: int, made: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Without bias, padded to keep the image's size at stride one."""
    return nn.Conv2d(given, made, size, stride, size // 2, bias=False)


def resnet_stem(channels: int) -> nn.Module:
    """7x7 of stride two, batch norm, ReLU, 3x3 pooling of stride two: ResNet's."""
    return nn.Sequential(
        conv(3, channels, 7, 2),
        BatchNorm(channels),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )


def strided_stem(channels: int) -> nn.Module:
    """3x3 of stride two, as ResNet-D and EfficientNet begin."""
    return nn.Sequential(
        conv(3, channels, 3, 2),
        BatchNorm(channels),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )


class Residual(nn.Module):
    """ReLU of a branch plus its input, which is projected where shapes differ."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.branch(x) + self.shortcut(x))


def _shortcut(given: int, made: int, stride: int) -> nn.Module:
    if given == made and stride == 1:
        return nn.Identity()
    return nn.Sequential(conv(given, made, 1, stride), BatchNorm(made))


def basic(given: int, made: int, stride: int = 1) -> nn.Module:
    """ResNet-18's block: two 3x3."""
    branch = nn.Sequential(
        conv(given, made, 3, stride),
        BatchNorm(made),
        nn.ReLU(),
        conv(made, made, 3),
        BatchNorm(made),
    )
    return Residual(branch, _shortcut(given, made, stride))


def bottleneck(given: int, inside: int, stride: int = 1) -> nn.Module:
    """ResNet-50's block: 1x1, 3x3 with the stride, 1x1 to four times as many."""
    made = 4 * inside
    branch = nn.Sequential(
        conv(given, inside, 1),
        BatchNorm(inside),
        nn.ReLU(),
        conv(inside, inside, 3, stride),
        BatchNorm(inside),
        nn.ReLU(),
        conv(inside, made, 1),
        BatchNorm(made),
    )
    return Residual(branch, _shortcut(given, made, stride))


class NeXt(nn.Module):
    """ConvNeXt's block: depthwise 7x7, norm, 1x1 by products, GELU, layer scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = ChannelNorm(channels)
        self.up = nn.Linear(channels, 4 * channels)
        self.down = nn.Linear(4 * channels, channels)
        self.scale = nn.Parameter(torch.linspace(0.1, 0.9, channels))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x)).permute(0, 2, 3, 1)
        y = self.scale * self.down(functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext(channels: int, blocks: int = 1) -> nn.Module:
    """A patch stem, blocks, a norm and a 2x2 of stride two, one more block."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 4, 4),
        ChannelNorm(channels),
        *(NeXt(channels) for _ in range(blocks)),
        ChannelNorm(channels),
        nn.Conv2d(channels, 2 * channels, 2, 2),
        NeXt(2 * channels),
    )


def _twice(given: int, made: int) -> nn.Module:
    """Two 3x3 with group norm and SiLU."""
    return nn.Sequential(
        *(conv(given, made, 3), nn.GroupNorm(2, made), nn.SiLU()),
        *(conv(made, made, 3), nn.GroupNorm(2, made), nn.SiLU()),
    )


class UNet(nn.Module):
    """Down by pooling, up by `how`, joined with what was there before."""

    def __init__(self, channels: int, how: str) -> None:
        super().__init__()
        self.how = how
        last = nn.ConvTranspose2d(2 * channels, channels, 2, 2)
        self.narrower = last if how == "transposed" else conv(2 * channels, channels, 1)
        self.first = _twice(3, channels)
        self.deep = _twice(channels, 2 * channels)
        self.last = _twice(2 * channels, channels)
        self.head = nn.Conv2d(channels, 2, 1)

    def up(self, x: Tensor) -> Tensor:
        """Twice the size, half the channels."""
        if self.how != "transposed":
            corners = None if self.how == "nearest" else False
            x = functional.interpolate(
                x, scale_factor=2.0, mode=self.how, align_corners=corners
            )
        return self.narrower(x)

    def forward(self, x: Tensor) -> Tensor:
        skip = self.first(x)
        deep = self.deep(functional.max_pool2d(skip, 2))
        return self.head(self.last(torch.cat([skip, self.up(deep)], 1)))


class Weighed(nn.Module):
    """A loss of a model's images, in which no two pixels count alike."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.model(x)
        weights = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).reshape(y.shape)
        return (weights * y + 0.1 * y * y).mean(), y


@dataclass(frozen=True)
class Stem:
    """A model by name; `images` is the shape of its batch.

    `tolerance` is of the largest number of a tensor.
    """

    name: str
    make: Make
    images: tuple[int, int, int, int]
    tolerance: float = 1e-5

    def built(self) -> tuple[nn.Module, Tensor]:
        """With seeded weights and images, in double precision."""
        torch.manual_seed(0)
        model = Weighed(self.make()).double()
        # From here on parameters and images are float32 numbers exactly.
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(p.float())
        return model, torch.randn(self.images).double()


def _resnet18(channels: int, *widths: int) -> nn.Module:
    return nn.Sequential(
        resnet_stem(channels),
        basic(channels, channels),
        *(basic(a, b, 2) for a, b in zip((channels, *widths), widths, strict=False)),
    )


def _resnet50(channels: int) -> nn.Module:
    return nn.Sequential(
        resnet_stem(channels),
        bottleneck(channels, channels),
        bottleneck(4 * channels, 2 * channels, 2),
    )


SMALL, USUAL = 32, 64
UPS = ("transposed", "nearest", "bilinear")

STEMS = (
    Stem("resnet stem", lambda: resnet_stem(8), (2, 3, SMALL, SMALL)),
    Stem("resnet stem 8x8", lambda: resnet_stem(4), (2, 3, 8, 8)),
    Stem("resnet stem 7x7", lambda: resnet_stem(4), (2, 3, 7, 7)),
    Stem("strided stem", lambda: strided_stem(8), (2, 3, SMALL, SMALL)),
    Stem("strided stem odd", lambda: strided_stem(5), (2, 3, 15, 17)),
    Stem("resnet-18", lambda: _resnet18(8, 16), (2, 3, SMALL, SMALL)),
    Stem("resnet-50", lambda: _resnet50(4), (2, 3, SMALL, SMALL)),
    Stem("convnext", lambda: convnext(8), (2, 3, SMALL, SMALL)),
    *(Stem(f"unet {u}", lambda u=u: UNet(4, u), (2, 3, 16, 16)) for u in UPS),
    # A kernel's gradient is a sum over 25,088 pixels, which IREE adds up one by one.
    Stem("resnet stem 224", lambda: resnet_stem(64), (2, 3, 224, 224), 3e-5),
    Stem("strided stem 224", lambda: strided_stem(32), (2, 3, 224, 224), 3e-5),
    Stem("resnet-18 64", lambda: _resnet18(32, 64, 128), (2, 3, USUAL, USUAL)),
    Stem("resnet-50 64", lambda: _resnet50(16), (2, 3, USUAL, USUAL)),
    Stem("convnext 64", lambda: convnext(32, 2), (2, 3, USUAL, USUAL)),
    *(Stem(f"unet {u} 64", lambda u=u: UNet(16, u), (2, 3, 64, 64)) for u in UPS),
)
