"""Drawn PyTorch functions in which gradients stop, in every way torch has for it.

A function is a tree: its leaves are the parameter, what is above are smooth ops and,
in between, detach, no_grad as context and as decorator, enable_grad, inference mode,
`.data`, checkpoint, and autograd.Functions with gradients that no formula would give.
"""

# torch's stub has `backward(ctx, *grad_outputs)`: no backward that names its gradients
# overrides it, and every one in torch's own tutorials does.
# pyright: reportIncompatibleMethodOverride=false

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Fn = Callable[[Tensor], Tensor]
SIZE = 4


class Rounded(torch.autograd.Function):
    """Straight through within bounds."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.exp(-x * x)


class Reversed(torch.autograd.Function):
    """The identity, whose gradient is reversed and scaled."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.scale * g, None


class Pair(torch.autograd.Function):
    """Two operands, two results, one of them without a gradient."""

    @staticmethod
    def forward(x, y):
        return x * y + y, x - y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output[0])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx, g, _):
        x, y, z = ctx.saved_tensors
        return g * torch.cos(y), g * torch.tanh(z) * x


def _pair(x: Tensor, y: Tensor) -> Tensor:
    value, fixed = Pair.apply(x, y)
    return value * torch.sin(fixed)


def _without(draw: random.Random, inner: Fn) -> Fn:
    """`inner` where torch records nothing, and maybe records again."""

    def region(x: Tensor) -> Tensor:
        with torch.no_grad():
            return inner(x)

    def switched(x: Tensor) -> Tensor:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(False)
        value = inner(x)
        torch.set_grad_enabled(before)
        return value

    def inside_out(x: Tensor) -> Tensor:
        with torch.no_grad():
            fixed = torch.cos(x)
            with torch.enable_grad():
                live = inner(x)
        return live * fixed

    def inferred(x: Tensor) -> Tensor:
        with torch.inference_mode():
            value = inner(x)
        return value.clone()  # an inference tensor cannot be saved for backward

    def written(x: Tensor) -> Tensor:
        value = torch.zeros(SIZE)
        with torch.no_grad():
            value[1:] = inner(x)[1:]
        value[:1] = torch.sin(x[:1])
        return value

    ways = [region, switched, inside_out, inferred, written, torch.no_grad()(inner)]
    return draw.choice(ways)


def _stopped(draw: random.Random, inner: Fn) -> Fn:
    return draw.choice(
        [
            lambda x: inner(x).detach(),
            lambda x: inner(x.detach()),
            lambda x: inner(x).data,
            lambda x: inner(x) - inner(x).detach() + x,
        ]
    )


def _ruled(draw: random.Random, inner: Fn) -> Fn:
    return draw.choice(
        [
            lambda x: Rounded.apply(inner(x) * 3),
            lambda x: Reversed.apply(inner(x), 0.5),
            lambda x: _pair(inner(x), torch.cos(x)),
            lambda x: _pair(x, inner(x).detach()),
        ]
    )


def _checkpointed(_: random.Random, inner: Fn) -> Fn:
    """`inner`, of which torch keeps nothing and runs it again."""
    return lambda x: checkpoint(
        lambda v: torch.sin(v) * inner(v), x, use_reentrant=False
    )


def _joined(draw: random.Random, depth: int) -> Fn:
    left, right = drawn(draw, depth - 1), drawn(draw, depth - 1)
    return draw.choice(
        [
            lambda x: left(x) * right(x),
            lambda x: left(x) + torch.tanh(right(x)),
            lambda x: torch.where(left(x) > 0, right(x), left(x) * 0.5),
        ]
    )


def drawn(draw: random.Random, depth: int) -> Fn:
    """A function of a vector of `SIZE`, which is bounded enough to be compared."""
    if depth == 0:
        return draw.choice([torch.sin, torch.cos, lambda x: x, lambda x: x * 1.5])
    kind = draw.choice([_without, _stopped, _ruled, _checkpointed, None])
    if kind is None:
        return _joined(draw, depth)
    return kind(draw, drawn(draw, depth - 1))


def _is_torch(fn: Fn) -> bool:
    """Whether torch itself differentiates it: what is recorded in inference mode, as
    by a rule in enable_grad there, cannot be saved for backward."""
    try:
        x = torch.ones(SIZE, requires_grad=True)
        (fn(x) + x).sum().backward()
    except RuntimeError as error:
        if "Inference tensors cannot be saved" not in str(error):
            raise
        return False
    return True


def _valid(draw: random.Random, depth: int) -> Fn:
    while not _is_torch(function := drawn(draw, depth)):
        pass
    return function


class Drawn(nn.Module):
    """The sum of drawn functions, each of a parameter of its own."""

    def __init__(self, seed: int, count: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        torch.manual_seed(seed)
        self.values = nn.ParameterList(torch.randn(SIZE) for _ in range(count))
        # A term of its own: else a function without any gradient would fail in torch.
        self.functions = [_valid(draw, draw.randint(2, 5)) for _ in range(count)]

    def forward(self, weights: Tensor) -> Tensor:
        terms = [
            (f(x) * weights + x * 0.25).sum()
            for f, x in zip(self.functions, self.values, strict=True)
        ]
        return torch.stack(terms).sum()
