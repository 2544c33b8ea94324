"""Training objectives whose gradients are decided by where they stop.

Each is a module with example inputs; without its stops, or its Function, it trains
something else.
"""

# torch's stub has `backward(ctx, *grad_outputs)`: no backward that names its gradients
# overrides it, and every one in torch's own tutorials does.
# pyright: reportIncompatibleMethodOverride=false

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Rounding(torch.autograd.Function):
    """Quantization to steps of a quarter, straight through where it does not clip."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.round(x.clamp(-1, 1) * 4) / 4

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() <= 1)


class Quantized(nn.Module):
    """Quantization-aware training: weights by a Function, activations by detach."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(x, Rounding.apply(self.layer.weight * 2), self.layer.bias)
        h = F.relu6(h * 4)
        h = h + (torch.round(h) - h).detach()
        return (self.head(h) ** 2).mean()


class Vectors(nn.Module):
    """VQ-VAE: the nearest code, straight through, codebook and commitment losses."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 3), nn.Linear(3, 4)
        self.codes = nn.Embedding(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        z, codes = self.encoder(x), self.codes.weight
        far = (z**2).sum(1, keepdim=True) - 2 * z @ codes.T + (codes**2).sum(1)
        q = self.codes(far.argmin(1))
        losses = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return F.mse_loss(self.decoder(z + (q - z).detach()), x) + losses


class Bootstrapped(nn.Module):
    """DQN: the target of another network, of which no gradient is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.target = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            best = self.online(x).argmax(1, keepdim=True)
            wanted = 0.5 + 0.9 * self.target(x).gather(1, best)
        return F.smooth_l1_loss(self.online(x * 0.5).gather(1, best), wanted)


class Distilled(nn.Module):
    """The softened classes of a teacher that shares the trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.teacher = nn.Linear(4, 6), nn.Linear(6, 3)
        self.student = nn.Linear(6, 3)

    @torch.no_grad()
    def wanted(self, h: Tensor) -> Tensor:
        return F.softmax(self.teacher(h) / 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.trunk(x))
        return F.kl_div(
            F.log_softmax(self.student(h) / 2, 1), self.wanted(h), reduction="batchmean"
        )


class Proximal(nn.Module):
    """PPO's clipped ratio; at the first step the ratio is one, and the clip a tie."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.value = nn.Linear(4, 3), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        log = F.log_softmax(self.policy(x), 1)
        value = self.value(x)[:, 0]
        gain = (x.sum(1) - value).detach()
        chosen = log.gather(1, log.detach().argmax(1, keepdim=True))[:, 0]
        ratio = torch.exp(chosen - chosen.detach())
        clipped = torch.clamp(ratio, 1.0, 1.2)
        loss = -torch.minimum(ratio * gain, clipped * gain).mean()
        return loss + F.mse_loss(value, x.sum(1)) - 0.01 * (log * log.exp()).sum()


class Ties(nn.Module):
    """A network of which many values lie on a kink: its weights are whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[1.0, -1, 0, 2], [0, 1, -1, 1]]))
        self.table = nn.Embedding(4, 4, padding_idx=1)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.round(x).detach() @ self.w.T
        rows = h @ self.w + self.table(torch.tensor([0, 1, 1]))[:1]
        pooled = F.max_pool2d(F.relu(rows)[None, None], 2, ceil_mode=True)
        terms = [
            F.hardtanh(h).sum(),
            h.clamp(0, 1).sum(),
            h.abs().sum(),
            F.leaky_relu(h).sum(),
            h.max(1)[0].sum(),
            (h * 0).norm() + h.norm(1),
            (rows - rows).std(),
            pooled.sum(),
            self.table(torch.tensor([1, 2])).sum(),
        ]
        return torch.stack(terms).sum()


class Objectives(nn.Module):
    """All of them, of one batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        kinds = (Quantized, Vectors, Bootstrapped, Distilled, Proximal, Ties)
        self.parts = nn.ModuleList(kind() for kind in kinds)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part(x) for part in self.parts]).sum()
