"""torch.autograd.Function keeps its backward on the way through from_torch."""

# torch's stub has `backward(ctx, *grad_outputs)`: no backward that names its gradients
# overrides it, and every one in torch's own tutorials does.
# pyright: reportIncompatibleMethodOverride=false

import numpy as np
import pytest
import torch
from helpers.oracles.torch_gradients import derived, ours, theirs
from helpers.sampled import sampled
from helpers.servers.interpreter import Interpreter
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from pcp.errors import IRError, PcpError
from pcp.frontends.torch import from_torch

Function = torch.autograd.Function
X = torch.tensor([1.0, 2.0, 3.0])


class Model(nn.Module):
    """`fn` of a weight times the input, summed."""

    def __init__(self, fn) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -1.5, 2.0]))
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.w * x).sum()


class Rounded(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, g):
        return g


#: Bound before anything is watched, as user code does.
rounded = Rounded.apply


class Three(Function):
    """Two operands and a number; three results, one of them boolean."""

    @staticmethod
    def forward(ctx, x, y, k):
        ctx.save_for_backward(x, y)
        ctx.k = k
        ctx.mark_non_differentiable(larger := x > y)
        return x * y * k, larger, torch.sin(x)

    @staticmethod
    def backward(ctx, g, _, h):
        x, y = ctx.saved_tensors
        return g * y * 10 + h, g * x * ctx.k, None


def three(x: Tensor) -> Tensor:
    a, larger, b = Three.apply(x, x * 2, 1.5)
    return a * b + larger


class SetUp(Function):
    """With a default, a saved result, and a context that is set up apart."""

    @staticmethod
    def forward(x, n=2):
        return x**n

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y * 7 + x, None


class Inside(Function):
    """Saves something of its inside, which has no gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.middle = torch.exp(x)
        ctx.save_for_backward(x)
        return ctx.middle * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.middle * torch.sin(x)


class Once(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mean = x.mean()
        return torch.exp(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * ctx.mean


class Again(Function):
    """Its backward applies it again."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * Again.apply(x + 1.5)


class GradInside(Function):
    """Its backward asks autograd for a gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return rounded(x) * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (d,) = torch.autograd.grad((y**3).sum(), y)
        return g * d


class Summed(Function):
    """A gradient wider than its operand, and one that is left out."""

    @staticmethod
    def forward(ctx, x, scale, other):
        return x * scale + other

    @staticmethod
    def backward(ctx, g):
        return g * 3, (g * 5).expand(3), None


class Listed(Function):
    """Tensors in a list take no gradient."""

    @staticmethod
    def forward(ctx, x, others):
        ctx.save_for_backward(*others)
        return x * others[0]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] * 3, None


class NotDifferentiable(Function):
    @staticmethod
    def forward(ctx, x):
        y = x * 3
        ctx.mark_non_differentiable(y)
        return x * 2, y

    @staticmethod
    def backward(ctx, g, h):
        return g + h


FIXED = torch.tensor([4.0, 5.0, 6.0])


class Constants(Function):
    @staticmethod
    def forward(ctx, x):
        return x * FIXED

    @staticmethod
    def backward(ctx, g):
        return g * torch.tensor([7.0, 8.0, 9.0])


FUNCTIONS = {
    "rounded": lambda x: rounded(x) * x,
    "three": three,
    "set up": lambda x: SetUp.apply(x) + SetUp.apply(x, 3),
    "inside": lambda x: Inside.apply(x),
    "once": lambda x: Once.apply(x),
    "again": lambda x: Again.apply(x),
    "grad inside": lambda x: GradInside.apply(x),
    "summed": lambda x: Summed.apply(x, x.sum(0, keepdim=True).detach() + x[:1], x),
    "listed": lambda x: Listed.apply(x, [x * 2]),
    "not differentiable": lambda x: (lambda a, b: a * b)(*NotDifferentiable.apply(x)),
    "constants": lambda x: Constants.apply(x),
    "stopped": lambda x: Rounded.apply(x.detach()) * x + Rounded.apply(x).detach(),
    "no_grad": lambda x: torch.no_grad()(rounded)(x) * x,
    "checkpoint": lambda x: checkpoint(
        lambda t: rounded(t) * t, x, use_reentrant=False
    ),
}


@sampled(
    "name",
    FUNCTIONS,
    [
        "set up",
        "inside",
        "once",
        "listed",
        "not differentiable",
        "stopped",
        "checkpoint",
    ],
)
def test_gradients(name: str, interpreter: Interpreter) -> None:
    model = Model(FUNCTIONS[name])
    (value, *_), (found,) = ours(interpreter, model, X)
    np.testing.assert_allclose(value, model(X).item(), rtol=1e-5)
    np.testing.assert_allclose(found, theirs(model, X)[0], rtol=1e-5)


@sampled("name", ["rounded", "three", "set up", "inside", "again"], 2)
def test_order_two(name: str, interpreter: Interpreter) -> None:
    model = Model(FUNCTIONS[name])
    (first,) = torch.autograd.grad(model(X), model.w, create_graph=True)
    (wanted,) = torch.autograd.grad((first * first).sum(), model.w)

    module = from_torch(model, X)
    text = derived(
        module,
        "pcp-grad{func=main name=once},pcp-vjp{func=once wrt=0 name=derived},"
        "pcp-inline-composites",
    )
    given = [model.w.detach().numpy(), X.numpy(), np.float32(0)]
    found = interpreter.run(text, [*given, 2 * first.detach().numpy()])[-1]
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_calls_that_are_alike_are_written_once() -> None:
    module = from_torch(Model(lambda x: rounded(rounded(x)) + SetUp.apply(x, 3)), X)
    assert str(module).count('"pcp.custom_vjp"') == 2


@pytest.mark.slow  # its gradient above would not be there
def test_a_function_that_applies_itself_ends() -> None:
    text = str(from_torch(Model(FUNCTIONS["again"]), X))
    assert 3 <= text.count('"pcp.custom_vjp"') <= 20


def test_forward_mode_through_a_function_is_refused() -> None:
    module = from_torch(Model(FUNCTIONS["rounded"]), X)
    with pytest.raises(PcpError, match=r"@Rounded has a pcp\.custom_vjp"):
        derived(module, "pcp-jvp{func=main name=derived}")


class Dirty(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g


class Broken(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ValueError("no derivative of this")


class OfModule(Function):
    @staticmethod
    def forward(ctx, x, layer):
        return layer(x)

    @staticmethod
    def backward(ctx, g):
        return g, None


class Captured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return OfModule.apply(x, self.layer).sum()


REFUSED = {
    "dirty": (Model(lambda x: Dirty.apply(x * 1)), "rule of Dirty .*mark_dirty"),
    "broken": (Model(lambda x: Broken.apply(x)), "Broken .*no derivative of this"),
    "captured": (Captured(), r"OfModule .*layer\.weight is used otherwise"),
    "vmap": (Model(torch.vmap(lambda x: SetUp.apply(x))), "transform of torch.func"),
    "grad": (
        Model(lambda x: torch.autograd.grad(rounded(x).sum(), x)[0]),
        "autograd.grad in forward",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    model, what = REFUSED[name]
    with pytest.raises(IRError, match=rf"^/.*test_torch_rules\.py:\d+: .*{what}"):
        from_torch(model, X)
