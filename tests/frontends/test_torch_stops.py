"""Where gradients stop in PyTorch, they stop in what from_torch makes of it."""

import re

import numpy as np
import pytest
import torch
from helpers.oracles.torch_gradients import GRADIENT, ours, theirs
from helpers.present import present
from helpers.random_programs.torch_stops import SIZE, Drawn
from helpers.sampled import sampled
from helpers.servers.interpreter import Interpreter
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pcp.errors import IRError
from pcp.frontends.signature import arguments_of
from pcp.frontends.torch import from_torch

X = torch.tensor([1.0, 2.0, 3.0])
COUNT = 5


class Model(nn.Module):
    """`fn` of a weight times the input, summed."""

    def __init__(self, fn) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([0.5, -1.5, 2.0]))
        self.fn = fn

    def forward(self, x: Tensor) -> Tensor:
        return self.fn(self.w * x).sum()


def _differing(found, wanted) -> list[int]:
    scale = [max(1.0, float(np.abs(w).max())) for w in wanted]
    pairs = zip(found, wanted, scale, strict=True)
    return [i for i, (f, w, s) in enumerate(pairs) if np.abs(f - w).max() > 1e-5 * s]


@pytest.mark.parametrize(
    "seed",
    # torch.export takes the square of the number of regions: 5 functions at a time.
    [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 200))],
)
def test_drawn_nestings(seed: int, interpreter: Interpreter) -> None:
    model, weights = Drawn(seed, COUNT), torch.linspace(0.5, 2.0, SIZE)
    wanted = theirs(model, weights)
    _, found = ours(interpreter, model, weights)
    assert _differing(found, wanted) == []


def test_without_stops_and_rules_they_would_differ(interpreter: Interpreter) -> None:
    model, weights = Drawn(0, COUNT), torch.linspace(0.5, 2.0, SIZE)
    written = f"pcp-inline-composites,{GRADIENT}"
    _, found = ours(interpreter, model, weights, passes=written)
    assert len(_differing(found, theirs(model, weights))) > COUNT // 2


def straight_through(x: Tensor) -> Tensor:
    return x + (torch.round(x) - x).detach()


def new_leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_() * x


def detached_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.detach_()
    return y * x


def written_under_no_grad(x: Tensor) -> Tensor:
    buffer = torch.zeros(3)
    with torch.no_grad():
        buffer[0] = x[0]
    buffer[1] = x[1]
    return buffer * x


def left_off(x: Tensor) -> Tensor:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = torch.sin(x)
    torch.set_grad_enabled(before)
    return y * x


def enabled_in_inference(x: Tensor) -> Tensor:
    with torch.inference_mode():
        with torch.enable_grad():
            y = torch.sin(x)
        with torch.set_grad_enabled(True):
            z = torch.sin(x)
    return y.clone() + z.clone() + x


def enabled_by_inference(x: Tensor) -> Tensor:
    with torch.no_grad(), torch.inference_mode(False):
        return torch.sin(x)


KEPT = {
    "inference": enabled_in_inference,
    "no inference": enabled_by_inference,
    "straight through": straight_through,
    "new leaf": new_leaf,
    "detach_": detached_in_place,
    "written": written_under_no_grad,
    "set_grad_enabled": left_off,
    "data": lambda x: x.data * x,
    "integers": lambda x: x.detach().argmax() * x,
    "decorator": lambda x: torch.no_grad()(torch.sin)(x) * x,
    "vmap": lambda x: torch.vmap(lambda a: a.detach() * a * a)(x),
    "checkpoint": lambda x: checkpoint(
        lambda t: t.sin() * t.detach(), x, use_reentrant=False
    ),
    "checkpoint in a checkpoint": lambda x: checkpoint(
        lambda t: t.sin() * checkpoint(torch.cos, t, use_reentrant=False),
        x,
        use_reentrant=False,
    ),
    "grad inside": lambda x: torch.autograd.grad((x**3).sum(), x)[0] * x,
    "grad of grad": lambda x: torch.autograd.grad((x**3).sum(), x, create_graph=True)[
        0
    ],
    "two results": lambda x: torch.no_grad()(torch.var_mean)(x)[0] * x,
}


@sampled("name", KEPT, 8)
def test_kept(name: str, interpreter: Interpreter) -> None:
    model = Model(KEPT[name])
    _, (found,) = ours(interpreter, model, X)
    np.testing.assert_allclose(found, theirs(model, X)[0], rtol=1e-5)


def test_a_reentrant_checkpoint_is_its_function(interpreter: Interpreter) -> None:
    # torch refuses torch.autograd.grad through it, so backward() is the oracle.
    model = Model(lambda x: checkpoint(torch.sin, x, use_reentrant=True) * x)
    model(X).backward()
    _, (found,) = ours(interpreter, model, X)
    np.testing.assert_allclose(found, present(model.w.grad), rtol=1e-5)


def test_the_grad_mode_is_put_back_when_tracing_fails() -> None:
    def fails(x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        raise ValueError("no")

    with pytest.raises(IRError, match=r"test_torch_stops\.py:\d+: torch\.export"):
        from_torch(Model(fails), X)
    assert torch.is_grad_enabled()


def test_stops_stand_at_the_users_lines() -> None:
    module = from_torch(Model(straight_through), X)
    text = module.operation.get_asm(enable_debug_info=True)
    (reference,) = re.findall(r'"pcp\.stop_gradient".*loc\((#\w+)\)', text)
    assert re.search(rf"{reference} = loc\(.*test_torch_stops\.py\":\d+", text)


def test_a_program_without_stops_has_no_op_of_pcp() -> None:
    text = str(from_torch(Model(torch.relu), X))
    assert '"pcp.' not in text
    assert "composite" not in text


# --- what cannot be kept is an error at its line ---


def clamped_in_place(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        y.clamp_(0, 1)
    return y * y


def written_through_data(x: Tensor) -> Tensor:
    y = x * 2
    y.data.clamp_(0, 1)
    return y * y


def written_while_detached(x: Tensor) -> Tensor:
    y = torch.zeros(3)
    alias = y.detach()
    y.copy_(x)
    return alias * y


def assigned_data(x: Tensor) -> Tensor:
    y = x * 2
    y.data = torch.zeros(3)
    return y * y


def hooked(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda g: g * 10)
    return y


def hooked_node(x: Tensor) -> Tensor:
    y = x * 2
    present(y.grad_fn).register_hook(lambda *_: None)
    return y


def saved_otherwise(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 0, lambda t: t):
        return x * x


def backward_of_many(x: Tensor) -> Tensor:
    torch.autograd.backward([x.sum()])
    return x


def backward_inside(x: Tensor) -> Tensor:
    x.sum().backward()
    return x


REFUSED = {
    "no_grad in place": (clamped_in_place, "writes in place"),
    "data in place": (written_through_data, "writes in place"),
    "alias": (written_while_detached, "writes in place"),
    "data assigned": (assigned_data, "assignment to .data"),
    "hook": (hooked, "hook on a gradient"),
    "node hook": (hooked_node, "hook on a gradient"),
    "saved tensors": (saved_otherwise, "saved_tensors_hooks"),
    "backward": (backward_inside, "backward\\(\\) in forward"),
    "backward of many": (backward_of_many, "backward\\(\\) in forward"),
    "torch.func": (lambda x: torch.func.grad(torch.sum)(x), "transform of torch.func"),
    "multilabel": (
        lambda x: nn.functional.multilabel_margin_loss(x, torch.tensor([0, -1, 1])),
        "write the loss out",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    fn, what = REFUSED[name]
    with pytest.raises(IRError, match=rf"^/.*test_torch_stops\.py:\d+: .*{what}"):
        from_torch(Model(fn), X)


def test_hooks_of_modules_and_parameters_are_refused_by_name() -> None:
    linear = nn.Linear(3, 3)
    model = nn.Sequential(linear)
    handle = linear.register_full_backward_hook(lambda *_: None)
    with pytest.raises(IRError, match=r"Sequential\.0: a hook on a gradient"):
        from_torch(model, X)
    handle.remove()
    linear.bias.register_hook(lambda g: g)
    with pytest.raises(IRError, match=r"Sequential\.0\.bias: a hook on a gradient"):
        from_torch(model, X)


class Freezing(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        self.bias.requires_grad_(False)
        return super().forward(input).sum()


class Assigning(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, input: Tensor) -> Tensor:
        self.mean = self.mean * 0.9 + input.detach()
        return (super().forward(input) * self.mean).sum()


class Elsewhere(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.held = [self.bias]

    def forward(self, input: Tensor) -> Tensor:
        return (super().forward(input) * self.held[0]).sum()


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Freezing(3, 3), r"test_torch_stops\.py:\d+: requires_grad changes"),
        (Assigning(), "the model assigns mean"),
        (Elsewhere(), "parameter bias is used otherwise"),
    ],
    ids=["freezing", "assigning", "elsewhere"],
)
def test_models_that_change_are_refused(model: nn.Module, what: str) -> None:
    with pytest.raises(IRError, match=what):
        from_torch(model, X)


# --- parameters that no gradient comes back to ---


class Distilled(nn.Module):
    """A teacher under no_grad, its parameters not frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = self.teacher(x)
        return ((self.student(x) - wanted) ** 2).sum()


def test_what_torch_would_not_update_is_frozen() -> None:
    roles = [a.role for a in arguments_of(from_torch(Distilled(), X))]
    assert roles == ["frozen", "frozen", "param", "param", "data"]


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.head(h), h.sum()


def test_what_no_result_needs_is_a_parameter() -> None:
    roles = [a.role for a in arguments_of(from_torch(Unused(), X, result=1))]
    assert roles == ["param"] * 4 + ["data"]
