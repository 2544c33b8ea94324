"""PyTorch's ops at their ties, kinks, bounds and other special points.

An entry is a function and the value it is differentiated at. `POINTWISE` are evaluated
at `POINTS`, or where their own domain is named.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

INF = float("inf")
POINTS = torch.tensor(
    [-8.0, -3, -2, -1, -0.5, -0.0, 0.0, 0.25, 0.5, 1, 2, 3, 6, 8, 20, 100]
)
POSITIVE = torch.tensor([0.0, 0.25, 1.0, 2.0, 100.0])
INSIDE = torch.tensor([-0.75, -0.25, -0.0, 0.0, 0.5])

ROWS = torch.tensor([[1.0, 3, 3], [2, 2, 2], [0, 0, -1], [-1, -1, -2]])
ROW = torch.tensor([1.0, 3, 3, 2, 3, -1])
ZEROS = torch.zeros(3, 4)
MIXED = torch.cat([ZEROS[:, :3], ROWS])
IMAGE = torch.tensor([[[[1.0, 2, 2, 1], [2, 2, 0, 0], [0, 0, 0, 0], [3, 1, 3, 3]]]])
IDS = torch.tensor([0, 1, 2, 0])

POINTWISE = {
    "relu": F.relu,
    "relu in place": lambda x: F.relu(x * 1, inplace=True),
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "hardtanh wide": lambda x: F.hardtanh(x, -2, 3.0),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "prelu": lambda x: F.prelu(x, torch.tensor(0.25)),
    "elu": F.elu,
    "elu alpha": lambda x: F.elu(x, 2.0),
    "celu": lambda x: F.celu(x, 2.0),
    "selu": F.selu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "threshold": lambda x: F.threshold(x, 1.0, 5.0),
    "softplus": F.softplus,
    "softplus beta": lambda x: F.softplus(x, 2.0, 2.0),
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "softsign": F.softsign,
    "logsigmoid": F.logsigmoid,
    "tanhshrink": F.tanhshrink,
    "abs": torch.abs,
    "sign": lambda x: torch.sign(x) * x,
    "clamp": lambda x: torch.clamp(x, -1, 2),
    "clamp min": lambda x: torch.clamp(x, min=1.0),
    "clamp max": lambda x: torch.clamp_max(x, 1.0),
    "clamp reversed": lambda x: torch.clamp(x, 2, -1),
    "clamp in place": lambda x: (x * 1).clamp_(0, 2),
    "clamp tensors": lambda x: x.clamp(torch.tensor(-1.0), torch.tensor(2.0)),
    "clamp by x": lambda x: torch.clamp(torch.tensor(1.0), x, x * 2 + 1),
    "maximum": lambda x: torch.maximum(x, torch.ones_like(x)),
    "minimum": lambda x: torch.minimum(x, torch.ones_like(x)),
    "maximum of x": lambda x: torch.maximum(x, x * x),
    "fmax": lambda x: torch.fmax(x, torch.ones_like(x)),
    "fmin": lambda x: torch.fmin(x, torch.ones_like(x)),
    "pow 0": lambda x: x**0,
    "pow 1": lambda x: x**1,
    "pow 2": torch.square,
    "pow 3": lambda x: x**3,
    "frac": torch.frac,
    "floor": lambda x: torch.floor(x) * x,
    "round": lambda x: torch.round(x) * x,
    "fmod": lambda x: torch.fmod(x, 1.0),
    "remainder": lambda x: torch.remainder(x, 2.0),
    "remainder of x": lambda x: x % -0.75,
    "atan2": lambda x: torch.atan2(x, x),
    "atan2 0": lambda x: torch.atan2(x, torch.zeros_like(x)),
    "atan": torch.atan,
    "asinh": torch.asinh,
    "sinc": torch.sinc,
    "copysign": lambda x: torch.copysign(x, torch.tensor(-1.0)),
    "copysign of x": lambda x: torch.copysign(torch.tensor(2.0), x) * x,
    "logaddexp": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "logaddexp2": lambda x: torch.logaddexp2(x, torch.zeros_like(x)),
    "logaddexp of x": lambda x: torch.logaddexp(x, x),
    "where": lambda x: torch.where(x > 0, x, x * x),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "nan_to_num": torch.nan_to_num,
    "constants": lambda x: (
        x * (torch.ones_like(x) * -1) * torch.sign(torch.tensor(-2.0))
    ),
    "compared": lambda x: x * (torch.full_like(x, 2.0) == 2),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none"),
    "smooth_l1 beta": lambda x: F.smooth_l1_loss(
        x, torch.zeros_like(x), reduction="none", beta=0.5
    ),
    "smooth_l1 0": lambda x: F.smooth_l1_loss(
        x, torch.ones_like(x), reduction="none", beta=0.0
    ),
    "huber": lambda x: F.huber_loss(x, torch.zeros_like(x), delta=2.0),
    "l1": lambda x: F.l1_loss(x, torch.ones_like(x), reduction="none"),
    "hinge": lambda x: F.hinge_embedding_loss(x, -torch.ones_like(x)),
    "margin ranking": lambda x: F.margin_ranking_loss(
        x, torch.ones_like(x), torch.ones_like(x), reduction="none"
    ),
    "bce logits": lambda x: F.binary_cross_entropy_with_logits(
        x, torch.full_like(x, 0.5), pos_weight=torch.tensor(2.0), reduction="none"
    ),
}
ELSEWHERE = {
    "sqrt": (torch.sqrt, POSITIVE),
    "pow half": (lambda x: x**0.5, POSITIVE),
    "xlogy": (lambda x: torch.xlogy(x, x), POSITIVE[1:]),
    "xlogy 0": (lambda x: torch.xlogy(torch.zeros_like(x), x), POSITIVE[1:]),
    "xlogy of x": (lambda x: torch.xlogy(x, torch.tensor(0.0)), POSITIVE),
    "kl": (lambda x: F.kl_div(torch.ones_like(x), x, reduction="none"), POSITIVE[1:]),
    "asin": (torch.asin, INSIDE),
    "acos": (torch.acos, INSIDE),
    "atanh": (torch.atanh, INSIDE),
    "bce": (
        lambda x: F.binary_cross_entropy(
            x, torch.tensor([0.0, 1, 0, 1, 0.5]), weight=torch.tensor(2.0)
        ),
        torch.tensor([0.0, 1.0, 0.5, 0.25, 0.75]),
    ),
}
ALONG = {
    "max": (lambda x: x.max(), ROW),
    "min": (lambda x: x.min(), -ROW),
    "amax": (lambda x: x.amax(1), ROWS),
    "amin": (lambda x: x.amin((0, 1)), -ROWS),
    "aminmax": (lambda x: sum(torch.aminmax(x, dim=1)), ROWS),
    "max dim": (lambda x: x.max(1)[0], ROWS),
    "max dim 0": (lambda x: x.max(-2, keepdim=True).values, ROWS),
    "min dim": (lambda x: x.min(1)[0], -ROWS),
    "argmax": (lambda x: x.gather(1, x.argmax(1, keepdim=True)), ROWS),
    "sort": (lambda x: x.sort(1)[0], ROWS),
    "sort down": (lambda x: x.sort(1, descending=True)[0], ROWS),
    "topk": (lambda x: x.topk(2, 1)[0], ROWS),
    "quantile": (lambda x: x.quantile(0.3, 1), ROWS),
    "prod of zero": (lambda x: x.prod(), torch.tensor([0.0, 2, 3])),
    "prod of zeros": (lambda x: x.prod(), torch.tensor([0.0, 2, 0])),
    "logsumexp": (lambda x: x.logsumexp(1), ROWS),
    "logsumexp -inf": (lambda x: x.logsumexp(0), torch.tensor([-INF, 1.0])),
    "softmax -inf": (lambda x: x.softmax(0), torch.tensor([-INF, 1.0, 2.0])),
    "norm": (lambda x: x.norm(dim=1), MIXED),
    "norm of zeros": (lambda x: x.norm(), ZEROS),
    "norm 1": (lambda x: x.norm(1, dim=1), MIXED),
    "norm inf": (lambda x: x.norm(INF, dim=1), MIXED),
    "norm -inf": (lambda x: x.norm(-INF, dim=1), MIXED),
    "norm 0": (lambda x: x.norm(0) * x[0], ROW),
    "norm 3": (lambda x: x.norm(3, dim=1), MIXED),
    "norm 1.5": (lambda x: torch.linalg.vector_norm(x, 1.5, dim=1), MIXED),
    "norm half": (lambda x: torch.linalg.vector_norm(x, 0.5, dim=1), ROWS),
    "matrix norm": (lambda x: torch.linalg.matrix_norm(x), ZEROS),
    "normalize": (lambda x: F.normalize(x + 0 * x, dim=1), ROWS),
    "pairwise": (lambda x: F.pairwise_distance(x, x.flip(0), p=1.0, eps=0.0), ROWS),
    "std": (lambda x: x.std(1), ROWS),
    "std of equals": (lambda x: x.std(unbiased=False), torch.ones(4)),
    "std_mean": (lambda x: sum(torch.std_mean(x, 1)), ROWS),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), IMAGE[0]),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 2, 1), IMAGE),
    "max_pool2d overlapping": (lambda x: F.max_pool2d(x, 3, 1), -IMAGE),
    "max_pool2d dilated": (lambda x: F.max_pool2d(x, 2, 1, dilation=2), IMAGE),
    "max_pool2d ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), IMAGE),
    "max_pool2d ceil padded": (
        lambda x: F.max_pool2d(x, 2, 3, 1, ceil_mode=True),
        IMAGE,
    ),
    "max_pool2d indices": (
        lambda x: (
            F.max_pool2d(x, 3, 2, ceil_mode=True, return_indices=True)[1] * x.sum()
        ),
        IMAGE,
    ),
    "max_pool3d": (lambda x: F.max_pool3d(x[None], (1, 2, 2)), IMAGE),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, 2), IMAGE),
    "lp_pool": (lambda x: F.lp_pool2d(x, 2.0, 2), IMAGE + 1),
    "triplet": (lambda x: F.triplet_margin_loss(x, x.flip(0), x * 2), ROWS),
    "cosine embedding": (
        lambda x: F.cosine_embedding_loss(x, x.flip(0), -torch.ones(4)),
        ROWS,
    ),
    "multi margin": (lambda x: F.multi_margin_loss(x, IDS), ROWS),
    "soft margin": (lambda x: F.multilabel_soft_margin_loss(x, torch.ones(4, 3)), ROWS),
    "cross entropy": (
        lambda x: F.cross_entropy(
            x, torch.tensor([0, -100, 2, 0]), label_smoothing=0.1
        ),
        ROWS,
    ),
    "embedding": (lambda x: F.embedding(IDS, x, padding_idx=0), ROWS),
    "attention": (
        lambda x: F.scaled_dot_product_attention(
            x[None], x[None], x[None], attn_mask=torch.tensor([[1, 0, 0, 0]] * 4).bool()
        ),
        ROWS,
    ),
    "attention to nothing": (
        lambda x: F.scaled_dot_product_attention(
            x[None], x[None], x[None], attn_mask=torch.zeros(4, 4).bool()
        ),
        ROWS,
    ),
    "end of a slice": (lambda x: _written(x), ROWS),
    "hardtanh module": (lambda x: nn.Hardtanh(0, 2, inplace=True)(x * 1), ROWS),
}


def _written(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[1:] = x[1:]
    return y


TABLE = {**{k: (f, POINTS) for k, f in POINTWISE.items()}, **ELSEWHERE, **ALONG}
